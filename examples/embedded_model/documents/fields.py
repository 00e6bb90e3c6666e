"""The fields that documents are asked for: types written by hand, and types drawn at random.

A drawn type has some of the fields that a kind of document has, in any order, under other keys, with and without
questions, so that the model learns to read a list of fields, not three lists by heart. Does not know the documents.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.transforms.typed.leaves import bare, choice
from millrace.transforms.typed.shapes import Items, Leaf, Maybe, Member, Piece, Record, Shape, Span

from .invoices import TERMS
from .orders import PRIORITIES
from .reviews import SENTIMENTS
from .written import CURRENCIES

_TEXT: tuple[Shape, ...] = (Piece(Span.words), Piece(Span.words), bare("text"))
_DAY: tuple[Shape, ...] = (bare("date"),)
_MONEY: tuple[Shape, ...] = (bare("decimal"), bare("number"))


@dataclass(frozen=True)
class Field:
    """One of the facts: the keys and the types it is asked under, and questions for it."""

    keys: tuple[str, ...]
    shapes: tuple[Shape, ...]
    questions: tuple[str, ...]


def _choices(values: Sequence[str]) -> tuple[Shape, ...]:
    return (choice(list(values)),)


_LINE_FIELDS = {
    "item": Field(("item", "product", "article", "name"), _TEXT, ("what", "what it is")),
    "quantity": Field(("quantity", "count", "pieces", "qty"), (bare("integer"),), ("how many",)),
}
ORDER_FIELDS = {
    "number": Field(
        ("number", "order_number", "order", "id", "reference"), _TEXT, ("the order number", "what it is filed under")
    ),
    "date": Field(("date", "ordered", "order_date"), _DAY, ("when it was ordered", "the day of the order")),
    "customer": Field(
        ("customer", "client", "buyer", "name", "ordered_by"), _TEXT, ("who ordered", "the buyer", "who it is for")
    ),
    "city": Field(
        ("city", "destination", "town", "ship_to"),
        _TEXT,
        ("where to ship", "where it is shipped to", "the destination"),
    ),
    "delivery": Field(
        ("delivery", "deliver_by", "needed_by"), _DAY, ("needed by", "when to deliver", "the day of delivery")
    ),
    "priority": Field(("priority", "urgency"), _choices(PRIORITIES), ("how urgent it is",)),
    "lines": Field(("lines", "positions", "articles", "items"), (), ("what was ordered",)),
    "items": Field(("items", "products", "articles"), (), ("what was ordered", "the names of the items")),
    "total": Field(("total", "amount", "sum", "order_total"), _MONEY, ("what all costs", "the whole amount")),
    "currency": Field(("currency",), _choices(CURRENCIES), ("which currency",)),
}
INVOICE_FIELDS = {
    "number": Field(("number", "invoice_number", "invoice", "id"), _TEXT, ("the invoice number",)),
    "date": Field(("date", "issued", "invoice_date"), _DAY, ("when it was issued", "the day of issue")),
    "due": Field(("due", "due_date", "pay_by"), _DAY, ("when it is to be paid", "the last day to pay")),
    "seller": Field(("seller", "supplier", "vendor", "company"), _TEXT, ("who sent it", "who sells", "the supplier")),
    "customer": Field(("customer", "client", "buyer", "bill_to"), _TEXT, ("who is to pay", "who it is made out to")),
    "order": Field(("order", "order_number", "purchase_order"), _TEXT, ("the order it refers to",)),
    "items": Field(("items", "products", "articles"), (), ("what was sold", "the names of the items")),
    "terms": Field(("terms", "payment_terms"), _choices(TERMS), ("until when to pay",)),
    "tax": Field(("tax", "vat"), _MONEY, ("how much of it is tax",)),
    "total": Field(("total", "amount", "sum", "amount_due"), _MONEY, ("how much to pay", "the amount due")),
    "currency": Field(("currency",), _choices(CURRENCIES), ("which currency",)),
}
REVIEW_FIELDS = {
    "product": Field(("product", "item", "subject", "title"), _TEXT, ("what is reviewed", "what it is about")),
    "author": Field(("author", "reviewer", "name", "customer"), _TEXT, ("who wrote it", "the reviewer")),
    "date": Field(("date", "written", "posted"), _DAY, ("when it was written",)),
    "stars": Field(("stars", "rating", "score"), (bare("integer"),), ("how many stars", "one to five")),
    "recommended": Field(("recommended", "recommends"), (bare("boolean"),), ("whether to buy it",)),
    "sentiment": Field(("sentiment", "opinion", "verdict"), _choices(SENTIMENTS), ("whether they like it",)),
}


def _asked(rng: random.Random, field: Field, shape: Shape) -> Member:
    """A key, with a question in it, with one beside it, or with none."""
    key = rng.choice(field.keys)
    form, said = rng.random(), rng.choice(field.questions)
    if form < 0.4:
        return Member(key, shape, key)
    return Member(key, shape, key, question=said) if form < 0.75 else Member(key, shape, key, hint=said)


def _leaf(rng: random.Random, field: Field, value: Any) -> Shape:
    shape = rng.choice(field.shapes)
    if not isinstance(shape, Leaf) or "enum" not in shape.schema:
        return shape
    values = list(shape.schema["enum"])
    others = [each for each in values if each != value]
    kept = rng.sample(others, rng.randint(1 if value is not None else 2, len(others))) + [value] * (value is not None)
    return choice(rng.sample(kept, len(kept)))


def _shape(rng: random.Random, name: str, field: Field, value: Any) -> tuple[Shape, dict[str, str]]:
    """The type of a field, and the keys of the fields within it."""
    if name == "items":
        return Items(rng.choice(_TEXT)), {}
    if name == "lines":
        members = {inner: _asked(rng, given, rng.choice(given.shapes)) for inner, given in _LINE_FIELDS.items()}
        names = rng.sample(sorted(members), len(members))
        return Items(Record("Line", tuple(members[inner] for inner in names))), {
            members[inner].key: inner for inner in names
        }
    return _leaf(rng, field, value), {}


@dataclass(frozen=True)
class Asked:
    """A type, and which fact is under which of its keys."""

    record: Record
    facts: dict[str, str]
    within: dict[str, str]
    """Which fact is under which key of a line."""


def drawn(rng: random.Random, fields: dict[str, Field], facts: dict[str, Any]) -> Asked:
    """A type of some of the fields: one that a document of these facts has a value of."""
    names = rng.sample(sorted(fields), rng.randint(1, 6))
    members: dict[str, Member] = {}
    facts_of: dict[str, str] = {}
    within: dict[str, str] = {}
    for name in names:
        shape, inner = _shape(rng, name, fields[name], facts[name])
        member = _asked(rng, fields[name], shape)
        if member.key in members:
            continue
        members[member.key] = _optional(rng, member, facts[name])
        facts_of[member.key] = name
        within |= inner
    return Asked(Record("Row", tuple(members.values())), facts_of, within)


def _optional(rng: random.Random, member: Member, value: Any) -> Member:
    """The member, nullable or not required if it has no value; in some cases also nullable if it has one."""
    if value is None and rng.random() < 0.15:
        return replace(member, required=False)
    if value is None or (rng.random() < 0.4 and not isinstance(member.shape, Items)):
        return replace(member, shape=Maybe(member.shape))
    return member

"""Questions about documents, as Extract asks them, with the answers its grammar allows.

Prompt and answer are made by the product's own code. Half of them use the types in examples/documents, or
their JSON Schemas, read from files; the rest use types drawn at random.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from examples.documents.rows import Invoice, Order, Review
from examples.embedded_model.split import Example, Split
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.document_template import DEFAULT_TEMPLATE, Prompts
from millrace.transforms.typed.examples import example_answer
from millrace.transforms.typed.json_schemas import schema_of
from millrace.transforms.typed.shapes import Record

from .facts import Document, Facts
from .fields import INVOICE_FIELDS, ORDER_FIELDS, REVIEW_FIELDS, Asked, Field, drawn
from .invoices import invoice
from .orders import order
from .reviews import review_document


class Kind:
    """A kind of documents: what makes one, the type of its rows, and the fields it can be asked for."""

    def __init__(
        self, name: str, make: Callable[[random.Random, Split], Document], rows: type, fields: dict[str, Field]
    ) -> None:
        self.name = name
        self.make = make
        self.rows = rows
        self.record = record_of(rows)
        self.fields = fields
        self._named = Asked(self.record, {member.key: member.name for member in self.record.members}, _LINE)
        self._by_schema = Asked(record_of(schema_of(self.record)), self._named.facts, _LINE)

    def asked(self, rng: random.Random, facts: Facts) -> Asked:
        """The type that a document is asked for."""
        form = rng.random()
        if form < 0.5:
            return self._named
        return self._by_schema if form < 0.65 else drawn(rng, self.fields, facts)

    def question(self, rng: random.Random, split: Split) -> Example:
        """A document and the row that is in it."""
        document = self.make(rng, split)
        asked = self.asked(rng, document.facts)
        return Example(self.name, prompt(asked.record, document.text), answer(asked, document.facts))

    def row(self, facts: Facts) -> str:
        """The JSON of the row that a document of these facts has, without the questions."""
        return self.written({member.key: facts[member.name] for member in self.record.members})

    def written(self, row: Any) -> str:
        """The JSON of a row: one of the kind's type, or a mapping."""
        return example_answer(_unasked(self.record), row)


_LINE = {"item": "item", "quantity": "quantity"}


def _unasked(record: Record) -> Record:
    return Record(record.name, tuple(replace(member, question="") for member in record.members))


def prompt(record: Record, document: str) -> str:
    """What Extract sends as the user's turn."""
    made = Prompts(record, (), DEFAULT_TEMPLATE).of(document)
    assert isinstance(made, str), "the default template is text"
    return made


def answer(asked: Asked, facts: Facts) -> str:
    """The row as the model is to write it."""
    values: dict[str, Any] = {key: facts[name] for key, name in asked.facts.items()}
    for key, name in asked.facts.items():
        if name == "lines":
            values[key] = [{inner: line[fact] for inner, fact in asked.within.items()} for line in facts["lines"]]
    return example_answer(asked.record, values)


ORDERS = Kind("order_rows", order, Order, ORDER_FIELDS)
INVOICES = Kind("invoice_rows", invoice, Invoice, INVOICE_FIELDS)
REVIEWS = Kind("review_rows", review_document, Review, REVIEW_FIELDS)
DOCUMENT_KINDS = {kind.name: kind for kind in (ORDERS, INVOICES, REVIEWS)}

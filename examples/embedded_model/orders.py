"""Orders and invoices, one line to a page long, and questions that pull fields out of them.

A field that a document states once is one kind of question; finding one line among several is another.

Held out: names, items, prices and document numbers; a held-out document's appear in no training document.
Quantities, dates, and the few towns that exist appear on both sides.
"""

import json
import random
from dataclasses import dataclass

from .split import Example, Split, draw
from .words import city, item, person

KIND = "extraction"
LINES_KIND = "line_items"

_MONTHS = "January February March April May June July August September October November December".split()
_CURRENCIES = ("EUR", "USD", "GBP", "CHF")
_NOTES = (
    "Please leave the parcel with the neighbour.",
    "Delivery between nine and twelve in the morning.",
    "The customer asked for a gift wrapping.",
    "Thank you for your business.",
    "Payment is due within thirty days.",
    "Please ring twice, the bell is broken.",
    "Paid by credit card.",
    "Returns are free within two weeks.",
    "The goods remain our property until they are paid in full.",
    "Ship everything in one box if possible.",
    "A copy of this document goes to the accounting department.",
    "Call before delivery.",
)
_ALIASES = {
    "customer": ("customer", "customer", "customer", "client", "buyer", "name"),
    "item": ("item", "item", "item", "product", "article"),
    "quantity": ("quantity", "quantity", "qty", "count"),
    "price": ("price", "price", "price", "unit_price"),
    "city": ("city", "city", "destination", "town"),
    "number": ("order", "number", "order_number", "id"),
    "date": ("date", "date", "order_date"),
    "currency": ("currency",),
}
_QUESTIONS = {
    "customer": (
        "Which customer placed this order?",
        "Who is the customer?",
        "Who ordered this?",
        "What is the name of the customer?",
        "Extract the customer.",
        "Name the buyer.",
    ),
    "city": (
        "Which city does it ship to?",
        "Where is it shipped to?",
        "What is the destination?",
        "Extract the city.",
    ),
    "number": ("What is the order number?", "Extract the order number.", "Which number does this order have?"),
    "date": ("What is the date of the order?", "When was it ordered?", "Extract the date."),
    "item": ("Which item was ordered?", "What was ordered?", "Extract the item.", "Name the product."),
    "quantity": ("How many were ordered?", "What is the quantity?", "Extract the quantity."),
    "price": ("What is the unit price?", "What does one cost?", "Extract the price.", "What is the price?"),
    "currency": ("Which currency is used?", "Extract the currency."),
}
_LINE_QUESTIONS = {
    "quantity": ("How many of {} were ordered?", "What is the quantity of {}?"),
    "price": ("What is the price of {}?", "What does one {} cost?"),
}
_ONE_LINERS = (
    "Order {number}: {quantity} x {item} for {customer}, {price} {currency} each, ship to {city}.",
    "Order {number} of {date}: {customer} bought {quantity} x {item} at {price} {currency} each, delivery to {city}.",
    "Invoice {number}, {date}, {customer}, {city}: {quantity} {item} at {price} {currency}.",
    "{customer} ({city}) ordered {quantity} {item} on {date}, {price} {currency} per piece, order number {number}.",
    "On {date} {customer} from {city} bought {quantity} x {item} for {price} {currency} each. Order no. {number}.",
    "#{number} | {date} | {customer} | {city} | {item} | {quantity} | {price} {currency}",
    "{number};{customer};{item};{quantity};{price};{currency};{city};{date}",
    "Invoice {number} to {customer}: {item}, quantity {quantity}, unit price {price} {currency}. {city}, {date}.",
    "Order no: {number}\nDate: {date}\nCustomer: {customer}\nCity: {city}\nItem: {item}\nQuantity: {quantity}\n"
    "Price: {price} {currency}",
    "We confirm order {number} placed on {date}: {quantity} pieces of {item}, {price} {currency} each, for {customer} "
    "in {city}.",
)
_SHORT = (
    "{quantity} x {item} for {customer}",
    "{customer}: {quantity} {item}, {price} {currency}",
    "Order {number}: {customer}, {quantity} x {item}.",
    "{customer} orders {quantity} {item} to {city}.",
    "{item}, {quantity} pieces, {price} {currency}, for {customer} in {city}",
)
_HEADS = (
    "Order {number}\nDate: {date}\nCustomer: {customer}\nShip to: {city}\n",
    "Invoice {number}, {date}\nBill to: {customer}, {city}\n",
    "Order {number} of {date} for {customer} in {city}:\n",
)
_LINES = (
    "- {quantity} x {item}, {price} {currency} each\n",
    "{quantity} {item} at {price} {currency}\n",
    "{item} | {quantity} | {price} {currency}\n",
)


@dataclass(frozen=True)
class Document:
    """An order as text, with the fields it states once and, for long ones, the fields of each of its lines."""

    text: str
    fields: dict[str, str]
    lines: tuple[dict[str, str], ...] = ()


def _price(rng: random.Random) -> str:
    whole = rng.choice((rng.randint(1, 9), rng.randint(10, 99), rng.randint(100, 999)))
    return f"{whole}.{rng.choice((0, 25, 50, 75, 90, 95, 99, rng.randint(0, 99))):02d}"


def _line_fields(rng: random.Random, split: Split) -> dict[str, str]:
    quantity = rng.randint(1, 12) if rng.random() < 0.6 else rng.randint(13, 250)
    return {
        "item": item(rng, split),
        "quantity": str(quantity),
        "price": draw(lambda: _price(rng), lambda price: f"price|{price}", split),
    }


def _head_fields(rng: random.Random, split: Split) -> dict[str, str]:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2026)
    date = f"{year}-{month:02d}-{day:02d}" if rng.random() < 0.5 else f"{day} {_MONTHS[month - 1]} {year}"
    return {
        "customer": person(rng, split),
        "city": city(rng, split),
        "number": draw(lambda: str(rng.randint(100, 99999)), lambda number: f"number|{number}", split),
        "date": date,
        "currency": rng.choice(_CURRENCIES),
    }


def short_document(rng: random.Random, split: Split) -> Document:
    """An order or invoice of one line."""
    fields = _head_fields(rng, split) | _line_fields(rng, split)
    frame = rng.choice(_SHORT if rng.random() < 0.2 else _ONE_LINERS)
    stated = {name: value for name, value in fields.items() if f"{{{name}}}" in frame}
    note = " " + rng.choice(_NOTES) if rng.random() < 0.2 else ""
    return Document(frame.format(**fields) + note, stated)


def long_document(rng: random.Random, split: Split) -> Document:
    """An order with two to six lines and some remarks."""
    fields = _head_fields(rng, split)
    lines = {entry["item"]: entry for entry in (_line_fields(rng, split) for _ in range(rng.randint(2, 6)))}
    frame = rng.choice(_LINES)
    body = "".join(frame.format(**entry, currency=fields["currency"]) for entry in lines.values())
    notes = " ".join(rng.sample(_NOTES, rng.randint(0, 5)))
    return Document((rng.choice(_HEADS).format(**fields) + body + notes).strip(), fields, tuple(lines.values()))


def _as_json(name: str, value: str) -> str:
    return value if name in ("quantity", "price", "number") else json.dumps(value, ensure_ascii=False)


def _listing(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _json_question(rng: random.Random, document: Document) -> tuple[str, str]:
    names = rng.sample(sorted(document.fields), rng.randint(1, min(5, len(document.fields))))
    keys = [rng.choice(_ALIASES[name]) for name in names]
    verb = rng.choice(("Extract {} as JSON", "Return {} as JSON", "Give {} as a JSON object", "Extract as JSON: {}"))
    pairs = (f'"{key}": {_as_json(name, document.fields[name])}' for key, name in zip(keys, names, strict=True))
    return verb.format(_listing(keys)), "{" + ", ".join(pairs) + "}"


def _field_question(rng: random.Random, document: Document) -> tuple[str, str]:
    name = rng.choice(sorted(document.fields))
    return rng.choice(_QUESTIONS[name]), document.fields[name]


def _line_question(rng: random.Random, document: Document) -> tuple[str, str]:
    entry, name = rng.choice(document.lines), rng.choice(("quantity", "price"))
    return rng.choice(_LINE_QUESTIONS[name]).format(entry["item"]), entry[name]


def _list_question(rng: random.Random, document: Document) -> tuple[str, str]:
    items = [entry["item"] for entry in document.lines]
    return rng.choice(("List the items as JSON", "Extract all items as a JSON list")), json.dumps(items)


def _ask(rng: random.Random, document: Document) -> tuple[str, str, str]:
    """A question, its answer, and its kind: `LINES_KIND` if the answer is in one or all of the lines of many."""
    asks = [_json_question, _field_question]
    if document.lines:
        asks += [_line_question, _list_question]
    ask = rng.choice(asks)
    question, answer = ask(rng, document)
    return question, answer, LINES_KIND if ask in (_line_question, _list_question) else KIND


def _join(rng: random.Random, question: str, text: str) -> str:
    ends = question if question[-1] in "?." else question + ":"
    if rng.random() < 0.25:
        return f"{text}\n{ends if question[-1] in '?.' else question + '.'}"
    return f"{ends}{' ' if rng.random() < 0.7 else chr(10)}{text}"


def extraction_question(rng: random.Random, split: Split) -> Example:
    """A document and one question about it; the answer is the bare value or a JSON object."""
    document = long_document(rng, split) if rng.random() < 0.16 else short_document(rng, split)
    question, answer, kind = _ask(rng, document)
    return Example(kind, _join(rng, question, document.text), answer)


def extraction_dialogue(rng: random.Random, split: Split) -> tuple[Example, ...]:
    """A document with a first question, then further questions that do not repeat it."""
    document = short_document(rng, split)
    question, answer, kind = _ask(rng, document)
    turns = [Example(kind, _join(rng, question, document.text), answer)]
    for _ in range(rng.randint(1, 3)):
        question, answer, kind = _ask(rng, document)
        turns.append(Example(kind, question if question[-1] in "?." else question + ".", answer))
    return tuple(turns)

"""Orders: who orders what, how many of each, where to and by when.

Knows nothing of how they are asked about. Days and towns are on both sides of the split; names, items, numbers and
amounts are not.
"""

import random
from decimal import Decimal

from examples.embedded_model.split import Split
from examples.embedded_model.words import city, item, person

from .facts import Document, Facts, occasionally
from .layouts import Draft, Telling, laid_out
from .written import Hand, amount, company, document_number, hand, later, mail_address, some_day, telephone

PRIORITIES = ("low", "normal", "high")
_TELLINGS = {
    "number": Telling(
        ("Order", "Order no.", "Order number", "Our reference", "PO number", "Order #"),
        (
            "Our order number is {}.",
            "Please quote {} when you answer.",
            "This is order {}.",
            "It is filed as order {}.",
        ),
    ),
    "date": Telling(
        ("Date", "Ordered on", "Order date", "Date of order", "Placed on"),
        ("The order was placed on {}.", "It was ordered on {}.", "The order is dated {}."),
    ),
    "customer": Telling(
        ("Customer", "Ordered by", "Buyer", "Client", "Name", "Bill to"),
        ("The customer is {}.", "{} placed this order.", "It was ordered by {}.", "We order on behalf of {}."),
    ),
    "city": Telling(
        ("City", "Ship to", "Deliver to", "Destination", "Town"),
        ("Please ship to {}.", "Please send everything to {}.", "It goes to our branch in {}.", "The goods go to {}."),
    ),
    "delivery": Telling(
        ("Delivery date", "Deliver by", "Needed by", "Delivery", "Requested for"),
        ("We need it by {}.", "Delivery is agreed for {}.", "Please deliver by {}.", "It has to arrive by {}."),
    ),
    "priority": Telling(("Priority", "Urgency"), ("The priority is {}.", "Please treat it with {} priority.")),
    "total": Telling(
        ("Total", "Order total", "Sum", "Grand total", "Amount"),
        ("The total is {}.", "That comes to {} in all.", "We expect to pay {} altogether.", "Total value: {}."),
    ),
}
_URGENT = ("This is urgent.", "It is urgent, please hurry.", "We need this as soon as possible.", "Express, please.")
_RELAXED = ("There is no hurry.", "Take your time.", "It is not urgent at all.", "No rush with this one.")
_LINES = (
    "- {quantity} x {item}{at}",
    "{quantity} x {item}{at}",
    "{quantity} {item}{at}",
    "* {item}, {quantity} pieces{at}",
    "{item} | {quantity}{bar}",
    "| {item} | {quantity} |{bar}",
    "{n}. {item} ({quantity}){at}",
    "{n}) {quantity} pcs {item}{at}",
    "{item}: {quantity}{at}",
    "{quantity}; {item}{bar}",
)
_IN_SENTENCES = (
    "{quantity} x {item}{at}",
    "{quantity} {item}{at}",
    "{quantity} pieces of {item}{at}",
    "{item} ({quantity}){at}",
)
_TITLES = ("Order", "Order", "Purchase order", "New order", "Order form")
_HEADS = ("Item | Quantity", "Article | Pieces", "What | How many", "Product | Qty")
_LISTINGS = (
    "We would like to order {}.",
    "Please send us {}.",
    "The order is for {}.",
    "I need {}.",
    "Ordered: {}.",
    "Items: {}.",
)
_ASIDES = (
    "Please leave the parcel with the neighbour.",
    "The goods are a gift.",
    "Please ring twice, the bell is broken.",
    "Ship everything in one box if possible.",
    "Thank you for the quick answer last time.",
    "The last delivery was complete, thank you.",
    "Call before delivery.",
    "The invoice goes to our office as always.",
)


def _lines(rng: random.Random, split: Split) -> list[Facts]:
    count, digits = rng.choice((1, 1, 2, 2, 3, 4)), rng.randint(1, 3)
    found = {item(rng, split): rng.randint(1, 12 if rng.random() < 0.6 else 250) for _ in range(count)}
    return [{"item": name, "quantity": many, "price": amount(rng, split, digits)} for name, many in found.items()]


def _facts(rng: random.Random, split: Split, writer: Hand) -> Facts:
    """Facts of an order. The lines have prices, which only some of the documents tell."""
    lines, day = _lines(rng, split), some_day(rng)
    total = sum((line["price"] * line["quantity"] for line in lines), Decimal())
    return {
        "number": document_number(rng, split),
        "date": day,
        "customer": person(rng, split) if rng.random() < 0.6 else company(rng, split),
        "city": occasionally(rng, 0.75, city(rng, split)),
        "delivery": occasionally(rng, 0.55, later(rng, day)),
        "priority": occasionally(rng, 0.5, rng.choice(PRIORITIES)),
        "total": occasionally(rng, 0.6, total),
        "currency": writer.currency,
        "lines": lines,
        "items": [line["item"] for line in lines],
    }


def _told(facts: Facts, writer: Hand) -> dict[str, tuple[Telling, str]]:
    texts = {
        "date": writer.day(facts["date"]),
        "delivery": facts["delivery"] and writer.day(facts["delivery"]),
        "total": facts["total"] and writer.money(facts["total"]),
    }
    return {
        name: (telling, str(texts.get(name, facts[name])))
        for name, telling in _TELLINGS.items()
        if facts[name] is not None
    }


def _written_lines(facts: Facts, writer: Hand, frame: str, is_priced: bool) -> list[str]:
    def price(line: Facts, before: str) -> str:
        return f"{before}{writer.money(line['price'])}" if is_priced else ""

    return [
        frame.format(**line | {"n": number, "at": price(line, " at "), "bar": price(line, " | ")})
        for number, line in enumerate(facts["lines"], 1)
    ]


def _table(rng: random.Random, facts: Facts, writer: Hand, is_priced: bool) -> list[str]:
    frame = rng.choice(_LINES)
    lines = _written_lines(facts, writer, frame, is_priced)
    return [rng.choice(_HEADS), *lines] if " | " in frame and rng.random() < 0.5 else lines


def _listing(rng: random.Random, facts: Facts, writer: Hand, is_priced: bool) -> str:
    *rest, last = _written_lines(facts, writer, rng.choice(_IN_SENTENCES), is_priced)
    return rng.choice(_LISTINGS).format(f"{', '.join(rest)} and {last}" if rest else last)


def order(rng: random.Random, split: Split) -> Document:
    """An order of one to four lines."""
    writer = hand(rng)
    facts = _facts(rng, split, writer)
    told = _told(facts, writer)
    asides = rng.sample(_ASIDES, rng.choice((0, 0, 1, 1, 2)))
    said_in = {"high": _URGENT, "low": _RELAXED}.get(facts["priority"])
    if said_in is not None and rng.random() < 0.35:
        told.pop("priority")
        asides.append(rng.choice(said_in))
    if rng.random() < 0.25:
        asides.append(f"Questions to {mail_address(rng, split)} or {telephone(rng)}.")
    is_priced = rng.random() < 0.45
    if not is_priced and facts["total"] is None:
        facts["currency"] = None
    table, listing = _table(rng, facts, writer, is_priced), _listing(rng, facts, writer, is_priced)
    draft = Draft(rng.choice(_TITLES), facts["customer"], "customer", told, table, listing, asides)
    return Document(laid_out(rng, split, draft), facts)

"""Invoices: who asks whom for how much, for what, and until when.

Knows nothing of how they are asked about. Days and towns are on both sides of the split; names, items, numbers and
amounts are not.
"""

import random
from decimal import Decimal

from examples.embedded_model.split import Split
from examples.embedded_model.words import city, item, made_up_word, person

from .facts import Document, Facts, occasionally
from .layouts import Draft, Telling, laid_out
from .written import Hand, amount, company, document_number, hand, later, some_day, street, telephone

TERMS = ("on receipt", "14 days", "30 days", "60 days")
_TELLINGS = {
    "number": Telling(
        ("Invoice", "Invoice no.", "Invoice number", "Invoice #", "Number", "Our reference"),
        ("The number of this invoice is {}.", "Please quote invoice {} when you pay.", "This is our invoice {}."),
    ),
    "date": Telling(
        ("Date", "Issued", "Invoice date", "Issued on", "Date of issue"),
        ("It was issued on {}.", "The invoice is dated {}.", "We issued it on {}."),
    ),
    "seller": Telling(
        ("From", "Seller", "Supplier", "Issued by", "Vendor"),
        ("It comes from {}.", "The supplier is {}.", "The goods were sold by {}.", "Please pay to {}."),
    ),
    "customer": Telling(
        ("Bill to", "Customer", "To", "Billed to", "Client", "Buyer"),
        ("It is made out to {}.", "The customer is {}.", "We bill {} for it.", "It goes to {}."),
    ),
    "order": Telling(
        ("Order", "Your order", "Order no.", "PO number"),
        ("It refers to order {}.", "Your order number was {}.", "It is for your order {}."),
    ),
    "tax": Telling(
        ("VAT", "Tax", "Sales tax", "of which VAT"),
        ("The tax in it is {}.", "{} of it is tax.", "This includes {} VAT."),
    ),
    "total": Telling(
        ("Total", "Amount due", "Total due", "Grand total", "To pay"),
        ("The total is {}.", "Please pay {}.", "The amount due is {}.", "It comes to {} in all."),
    ),
    "due": Telling(
        ("Due", "Due date", "Pay by", "Payment due", "Payable until"),
        ("It is due on {}.", "Please pay by {}.", "Payment is due by {}.", "We expect the payment until {}."),
    ),
    "terms": Telling(
        ("Terms", "Payment terms", "Payment"),
        ("The payment terms are: {}.", "Our terms are {}.", "Payment: {}."),
    ),
}
_TERMS_WRITTEN = {
    "on receipt": ("on receipt", "due on receipt", "payable at once", "immediately"),
    "14 days": ("14 days", "net 14", "14 days net", "within fourteen days", "within 14 days"),
    "30 days": ("30 days", "net 30", "30 days net", "within thirty days", "within 30 days"),
    "60 days": ("60 days", "net 60", "60 days net", "within sixty days", "within 60 days"),
}
_LINES = (
    "{quantity} x {item} at {price}",
    "- {quantity} x {item}, {price} each",
    "{item} | {quantity} | {price}",
    "| {item} | {quantity} | {price} | {amount} |",
    "{n}. {item}, {quantity} pieces, {price} each: {amount}",
    "{quantity} {item}: {amount}",
    "{item} ({quantity} x {price})",
    "{item} {amount}",
)
_IN_SENTENCES = (
    "{quantity} x {item} at {price}",
    "{quantity} {item} for {amount}",
    "{item}, {quantity} pieces at {price} each",
)
_LISTINGS = ("We delivered {}.", "For {}.", "You received {}.", "We charge you for {}.", "This is for {}.")
_TITLES = ("Invoice", "Invoice", "Invoice", "Tax invoice", "Bill")
_ASIDES = (
    "Thank you for your business.",
    "The goods remain our property until they are paid in full.",
    "Returns are free within two weeks.",
    "A copy of this document goes to the accounting department.",
    "We are closed on Sundays.",
    "Errors excepted.",
    "We look forward to your next visit.",
)


def _lines(rng: random.Random, split: Split) -> list[Facts]:
    digits = rng.randint(1, 3)
    found = {item(rng, split): rng.randint(1, 20) for _ in range(rng.choice((1, 1, 2, 2, 3, 3, 4)))}
    return [{"item": name, "quantity": count, "price": amount(rng, split, digits)} for name, count in found.items()]


def _facts(rng: random.Random, split: Split, writer: Hand) -> Facts:
    lines, day = _lines(rng, split), some_day(rng)
    net = sum((line["price"] * line["quantity"] for line in lines), Decimal())
    tax = (net * rng.choice((7, 10, 19, 20, 21)) / 100).quantize(Decimal("0.01"))
    tax = occasionally(rng, 0.55, tax)
    return {
        "number": document_number(rng, split),
        "date": day,
        "seller": company(rng, split),
        "customer": person(rng, split) if rng.random() < 0.5 else company(rng, split),
        "order": occasionally(rng, 0.3, document_number(rng, split)),
        "tax": tax,
        "total": net + (tax or 0),
        "due": occasionally(rng, 0.6, later(rng, day)),
        "terms": occasionally(rng, 0.5, rng.choice(TERMS)),
        "currency": writer.currency,
        "lines": lines,
        "items": [line["item"] for line in lines],
    }


def _told(rng: random.Random, facts: Facts, writer: Hand) -> dict[str, tuple[Telling, str]]:
    texts = {name: facts[name] and writer.day(facts[name]) for name in ("date", "due")}
    texts |= {name: facts[name] and writer.money(facts[name]) for name in ("tax", "total")}
    texts["terms"] = facts["terms"] and rng.choice(_TERMS_WRITTEN[facts["terms"]])
    return {
        name: (telling, str(texts.get(name, facts[name])))
        for name, telling in _TELLINGS.items()
        if facts[name] is not None
    }


def _written_lines(facts: Facts, writer: Hand, frame: str) -> list[str]:
    return [
        frame.format(
            n=number,
            item=line["item"],
            quantity=line["quantity"],
            price=writer.money(line["price"]),
            amount=writer.money(line["price"] * line["quantity"]),
        )
        for number, line in enumerate(facts["lines"], 1)
    ]


def _listing(rng: random.Random, facts: Facts, writer: Hand) -> str:
    *rest, last = _written_lines(facts, writer, rng.choice(_IN_SENTENCES))
    return rng.choice(_LISTINGS).format(f"{', '.join(rest)} and {last}" if rest else last)


def _small_print(rng: random.Random, split: Split) -> str:
    forms = (
        f"VAT no. {made_up_word(rng, split)[:2].upper()}{rng.randint(10**7, 10**9)}",
        f"Bank: {made_up_word(rng, split).capitalize()} Bank, account {rng.randint(10**7, 10**10)}",
        f"{street(rng, split)}, {city(rng, split)}",
        f"Tel. {telephone(rng)}",
        f"Your contact: {person(rng, split)}",
    )
    return rng.choice(forms) + "."


def invoice(rng: random.Random, split: Split) -> Document:
    """An invoice of one to four lines."""
    writer = hand(rng)
    facts = _facts(rng, split, writer)
    asides = rng.sample(_ASIDES, rng.choice((0, 0, 1, 1)))
    if rng.random() < 0.35:
        asides.append(_small_print(rng, split))
    lines = _written_lines(facts, writer, rng.choice(_LINES))
    draft = Draft(
        rng.choice(_TITLES),
        facts["seller"],
        "seller",
        _told(rng, facts, writer),
        lines,
        _listing(rng, facts, writer),
        asides,
    )
    return Document(laid_out(rng, split, draft), facts)

"""Spellings of values in documents: days, amounts of money, numbers of documents, companies, addresses.

A document keeps to one way of writing days and one of writing money. Held out: amounts, numbers, names of companies.
"""

import random
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

from examples.embedded_model.split import Split, draw
from examples.embedded_model.words import LAST_NAMES, made_up_word

CURRENCIES = ("EUR", "USD", "GBP", "CHF")
_SIGNS = {"EUR": "€", "USD": "$", "GBP": "£", "CHF": "Fr."}
_MONTHS = "January February March April May June July August September October November December".split()
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_DAYS = (
    "{day:%Y-%m-%d}",
    "{day:%Y-%m-%d}",
    "{day.day} {month} {day.year}",
    "{day.day} {month} {day.year}",
    "{month} {day.day}, {day.year}",
    "{month} {day.day}, {day.year}",
    "{day.day} {month:.3} {day.year}",
    "{month:.3} {day.day}, {day.year}",
    "{day:%d.%m.%Y}",
    "{day.day}.{day.month}.{day.year}",
    "{day:%Y/%m/%d}",
    "{day:%d}-{month:.3}-{day.year}",
    "{weekday}, {day.day} {month} {day.year}",
    "{month} {nth}, {day.year}",
    "the {nth} of {month} {day.year}",
)
_NUMBERS = ("plain", "plain", "plain", "thousands", "continental")
_AMOUNTS = (
    "{number} {code}",
    "{number} {code}",
    "{code} {number}",
    "{sign}{number}",
    "{sign} {number}",
    "{number} {sign}",
)
_SUFFIXES = ("Ltd", "GmbH", "Inc.", "& Sons", "AG", "Trading", "Supplies", "S.A.", "& Co.", "Stores", "Works", "LLC")
_STREETS = ("Street", "Road", "Lane", "Square", "Avenue", "Hill")
_PREFIXES = ("ORD-", "PO-", "A", "B-", "No", "R-", "INV-", "RE", "S")


def _nth(number: int) -> str:
    ending = "th" if 10 < number < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@dataclass(frozen=True)
class Hand:
    """Whoever writes a document: a way of writing days and money, and a currency."""

    days: str
    numbers: str
    amounts: str
    currency: str

    def day(self, day: date) -> str:
        """A day as it is written here."""
        names = {"month": _MONTHS[day.month - 1], "weekday": _WEEKDAYS[day.weekday()], "nth": _nth(day.day)}
        return self.days.format(day=day, **names)

    def number(self, value: Decimal) -> str:
        """An amount without its currency."""
        if self.numbers == "plain":
            return f"{value:.2f}"
        grouped = f"{value:,.2f}"
        return grouped if self.numbers == "thousands" else grouped.translate(str.maketrans(",.", ".,"))

    def money(self, value: Decimal) -> str:
        """An amount with its currency, as a code or as a sign."""
        return self.amounts.format(number=self.number(value), code=self.currency, sign=_SIGNS[self.currency])


def hand(rng: random.Random) -> Hand:
    """Somebody's way of writing."""
    return Hand(rng.choice(_DAYS), rng.choice(_NUMBERS), rng.choice(_AMOUNTS), rng.choice(CURRENCIES))


def some_day(rng: random.Random) -> date:
    """A day of 2019 to 2027."""
    return date(2019, 1, 1) + timedelta(days=rng.randrange(9 * 365))


def later(rng: random.Random, day: date, most: int = 60) -> date:
    """A day within so many days after another."""
    return day + timedelta(days=rng.randint(1, most))


def amount(rng: random.Random, split: Split, digits: int = 4) -> Decimal:
    """Money: up to so many digits before the point, two after it."""
    length = rng.randint(1, digits)

    def sample() -> str:
        cents = rng.choice((0, 50, 90, 95, 99, rng.randint(0, 99), rng.randint(0, 99)))
        return f"{rng.randint(10 ** (length - 1), 10**length - 1)}.{cents:02d}"

    return Decimal(draw(sample, lambda written: f"price|{written}", split))


def document_number(rng: random.Random, split: Split) -> str:
    """What a document is filed under: digits mostly, often with letters or a year."""

    def sample() -> str:
        digits = str(rng.randint(100, 999999))
        forms = (digits, digits, rng.choice(_PREFIXES) + digits, f"{rng.randint(2019, 2027)}-{digits[:4]}")
        return rng.choice(
            (*forms, f"{rng.choice(_PREFIXES)}{digits[:3]}-{digits[3:] or 7}", f"{digits}/{rng.randint(1, 99)}")
        )

    return draw(sample, lambda written: f"number|{written}", split)


def company(rng: random.Random, split: Split) -> str:
    """A name of a company, made up mostly."""

    def sample() -> str:
        name = rng.choice(LAST_NAMES) if rng.random() < 0.35 else made_up_word(rng, split).capitalize()
        return f"{name} {rng.choice(_SUFFIXES)}"

    return draw(sample, lambda name: f"company|{name}", split)


def street(rng: random.Random, split: Split) -> str:
    """A street with a number."""
    return f"{rng.randint(1, 199)} {made_up_word(rng, split).capitalize()} {rng.choice(_STREETS)}"


def mail_address(rng: random.Random, split: Split, name: str = "") -> str:
    """An e-mail address, of a person if there is one."""
    user = ".".join(part for part in name.lower().replace("'", "").split()) or rng.choice(("sales", "orders", "info"))
    return f"{user}@{made_up_word(rng, split)}.{rng.choice(('com', 'net', 'org', 'example'))}"


def telephone(rng: random.Random) -> str:
    """A telephone number."""
    return f"+{rng.randint(30, 49)} {rng.randint(20, 999)} {rng.randint(100000, 9999999)}"

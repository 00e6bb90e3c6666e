"""Values of rows as text that a page can hold: clipped, and with no character that a browser changes, drops or obeys.
Numbers and times as people read them.

Escaping for HTML is the templates' business. What stands here decides which text a cell has: its DOM text is `text`.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, NamedTuple

MOST_SHOWN = 2000
"""Characters of a value."""
MOST_OF_DOCUMENT = 20_000
"""Characters of a document whose spans are shown."""
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)
"""Control characters but tab and line feed, what turns the direction of text around, and halves of characters."""
_PICTURES = 0x2400
"""Where Unicode has pictures of the control characters."""


class Clipped(NamedTuple):
    """The beginning of a text."""

    text: str
    dropped: int = 0
    """Characters that are left out behind it."""


NOTHING = Clipped("")


def clipped(value: Any, most: int = MOST_SHOWN) -> Clipped:
    """A value as text, at most `most` characters of it."""
    text = value if isinstance(value, str) else as_text(value)
    return Clipped(harmless(text[:most]), max(len(text) - most, 0))


def as_text(value: Any) -> str:
    """Text as it is, nothing for null, dates and decimals as they are written, everything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value.normalize():f}"  # a column has one number of digits for all its values
    if not isinstance(value, dict | list | tuple | bool | int | float):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):  # a circle, or keys of odd types
        return str(value)


def harmless(text: str) -> str:
    """The same text, as long as before, with a sign in the place of each character that a browser would not show."""
    return _HARMFUL.sub(lambda found: _sign(ord(found[0])), text)


def _sign(code: int) -> str:
    return chr(_PICTURES + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def number(value: float) -> str:
    """The number as text, with separators of thousands."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def percent(share: float) -> str:
    """`87 %`; what is nearly certain keeps a digit more: `99.7 %`."""
    return f"{100 * share:.1f} %" if 0.99 <= share < 0.9995 else f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """h:mm:ss, or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def span(seconds: float) -> str:
    """A time, with tenths where it is short."""
    return duration(seconds) if seconds >= 60 else f"{seconds:.1f} s"

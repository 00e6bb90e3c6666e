"""Characters that show nothing. No span begins or ends with one, and a document of nothing else is blank.

They are white space (`str.isspace`), control characters (NUL among them), and format characters without width: the
byte order mark, U+200B, soft hyphens, marks of direction. Joiners are no blanks: a word of Malayalam or Persian may end
in one. They belong to the letter before them.
"""

from __future__ import annotations

import regex

BLANKS = (
    r"\u0000-\u0020\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
    r"\ufff9-\ufffb"
)
"""Characters that show nothing, as written between the brackets of a character class, in Python and in a grammar."""
JOINERS = r"\u200c\u200d"
"""The two joiners, U+200C and U+200D, as written in a character class."""
_SHOWN = regex.compile(f"[^{BLANKS}{JOINERS}]")


def is_blank(text: str) -> bool:
    """Whether nothing in it shows, so that it has no spans."""
    return _SHOWN.search(text) is None

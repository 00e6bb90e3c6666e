"""The key is shown in no error and no log, though servers repeat it there.

Knows texts of errors; answers are never changed.
"""

from __future__ import annotations

import re
from urllib.parse import quote

HIDDEN = "***"
_LEAST = 4
"""Characters of a key that was cut off at the text's end, at least, that are taken for it."""
_ENDS = "'\"…"


def without_key(text: str, key: str) -> str:
    """A text without the key, as it is, escaped as in JSON or URLs, or cut off at the end."""
    if not key:
        return text
    text = re.sub("".join(map(_forms, key)), HIDDEN, text, flags=re.IGNORECASE)
    bare = text.rstrip(_ENDS)
    for size in range(len(key) - 1, _LEAST - 1, -1):
        if bare.endswith(key[:size]):
            return bare[:-size] + HIDDEN + text[len(bare) :]
    return text


def _forms(character: str) -> str:
    """A pattern of how a character may be written: with backslashes before it, as a URL has it, or by its number."""
    forms = [rf"\\*{re.escape(character)}"]
    forms += [re.escape(quote(character, safe="", errors="replace")), f"%{ord(character):02x}"]
    forms += ["".join(rf"\\+u{unit:04x}" for unit in _units(character))]
    return f"(?:{'|'.join(forms)})"


def _units(character: str) -> list[int]:
    """Its numbers in UTF-16, which JSON's escapes have."""
    encoded = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]

"""A text is made for each expression of a kind that schemas have, and none for what is not read."""

import random
import re

import pytest

from model_manager.engine.constraints.witness import witness

FOUND = {
    "[0-9]{3}": "000",
    "INV-[0-9]{4}": "INV-0000",
    "[A-Z].{12}[0-9]{3}": "Aaaaaaaaaaaaa000",
    r"^.*@example\.com$": "@example.com",
    "(?s:.*)(cat|dog)[0-9]{2}": "cat00",
    r"^(?:[^a]+|(?P<name>\d\w\s)){2}$": "00",
    r"[^\]a0]x?\x41\u0042\x{43}": " ABC",
    r"[]]{2,}y+?": "]]y",
    r"\p{Lu}\pN\p{P}": "A0.",
    '"[{(]': '"{',
}
NONE = ["", "a*", "(?=a)b", "(", "a)", "[a", "\\", "(a{99}){99}", "a{99999999999}", "(" * 9999, "\\ud800", "[^[a]]"]


@pytest.mark.parametrize("pattern", FOUND)
def test_a_short_text_matches(pattern: str) -> None:
    assert witness(pattern) == FOUND[pattern]


@pytest.mark.parametrize("pattern", NONE, ids=[pattern[:20] for pattern in NONE])
def test_what_is_not_read_has_none(pattern: str) -> None:
    assert witness(pattern) is None


def test_what_python_reads_too_matches() -> None:
    source, pieces = random.Random(1), [*"ab()|*+?.", "{2}", "{1,3}", "[^a]", "[a-c]", "\\d", "(?:"]
    matched = 0
    for _ in range(3000):
        pattern = "".join(source.choice(pieces) for _ in range(source.randrange(1, 12)))
        text = witness(pattern)
        try:
            expression = re.compile(pattern)
        except re.error:
            continue
        if text is not None and not re.search(r"[*+?}][*+?{]", pattern):
            assert expression.search(text), pattern
            matched += 1
    assert matched > 100


def test_nothing_raises() -> None:
    source, pieces = random.Random(2), [*"a()|*+?.^$[]{}-\\", "{2}", "[^", "\\p{L}", "(?i)", "\\x", "\\u", "\ud800"]
    found = [witness("".join(source.choice(pieces) for _ in range(source.randrange(1, 12)))) for _ in range(3000)]
    assert any(found)

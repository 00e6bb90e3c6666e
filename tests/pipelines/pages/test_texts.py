from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipelines.pages.texts import as_text, clipped, duration, harmless, percent, span
from tests.pipelines.pages.hostile import TEXTS


@given(st.text(st.characters(codec=None)))
def test_a_harmless_text_is_as_long_as_the_given_one_and_can_be_encoded(text: str) -> None:
    found = harmless(text)
    assert len(found) == len(text), "spans of a document stay where they are"
    found.encode()
    assert not set(found) & {chr(code) for code in (*range(9), 11, 12, 13, *range(14, 32), 0x7F, 0x202E)}
    assert harmless(found) == found


@pytest.mark.parametrize("text", TEXTS)
def test_letters_signs_and_spaces_stay_as_they_are(text: str) -> None:
    for before, after in zip(text, harmless(text), strict=True):
        assert after == before or not before.isprintable()


def test_a_long_value_is_clipped_and_says_so() -> None:
    assert clipped("x" * 10_000_000, 10) == ("x" * 10, 9_999_990)
    assert clipped("xyz", 10) == ("xyz", 0)


def test_values_are_shown_as_json_and_null_as_nothing() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert [
        as_text(value) for value in ({"a": "ü"}, [1, None], None, 2.5, "as it is", date(2026, 5, 1), Decimal("8.5000"))
    ] == [
        '{"a": "ü"}',
        "[1, null]",
        "",
        "2.5",
        "as it is",
        "2026-05-01",
        "8.5",
    ]
    assert as_text(circle) == "[[...]]"


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0:00"), (61, "1:01"), (3661, "1:01:01")])
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_shares_and_spans_of_time() -> None:
    assert [percent(share) for share in (0.5, 0.996, 0.99996, 1.0)] == ["50 %", "99.6 %", "100 %", "100 %"]
    assert [span(0.04), span(59.9), span(60)] == ["0.0 s", "59.9 s", "1:00"]

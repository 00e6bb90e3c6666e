"""Places of values in an answer and of pieces in the document, and what values become in Python."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest

from millrace import Span
from millrace.model_manager.wire.errors import AnswerRejected
from millrace.transforms.typed.answer_values import read
from millrace.transforms.typed.leaves import bare, choice
from millrace.transforms.typed.record_grammar import pieces
from millrace.transforms.typed.shapes import Items, Kind, Leaf, Maybe, Member, Piece, Record
from millrace.transforms.typed.values import decoded, value_of

LINE = Record("Line", (Member("item", Piece(Span.words), "item"), Member("count", bare("integer"), "count")))
ORDER = Record(
    "Order",
    (
        Member("who", Maybe(Piece(Span.words)), "who", question="whose?"),
        Member("lines", Items(LINE), "lines"),
    ),
)
DOCUMENT = "lamp, cup, lamp, lampshade for Anna and Anna"


def answer(*items: str) -> str:
    lines = ", ".join(f'{{"item": "{item}", "count": 1}}' for item in items)
    return f'{{"who (whose?)": "Anna", "lines": [{lines}]}}'


def test_ranges_are_of_the_answer_and_its_questions_are_left_out() -> None:
    text = answer("cup")
    found = read(ORDER, text, DOCUMENT)
    assert found.json == '{"who": "Anna", "lines": [{"item": "cup", "count": 1}]}'
    assert {path: text[start:end] for path, (start, end) in found.ranges.items()} == {
        "": text,
        "who": '"Anna"',
        "lines": '[{"item": "cup", "count": 1}]',
        "lines[0]": '{"item": "cup", "count": 1}',
        "lines[0].item": '"cup"',
        "lines[0].count": "1",
    }


def test_the_first_place_counts_and_in_a_list_the_first_behind_the_element_before() -> None:
    found = read(ORDER, answer("lamp", "lamp", "lampshade", "cup"), DOCUMENT).spans
    assert found == {
        "who": (31, 35),
        "lines[0].item": (0, 4),
        "lines[1].item": (11, 15),
        "lines[2].item": (17, 26),
        "lines[3].item": (6, 9),
    }


def listed(*fields: str, parts: bool = False) -> Record:
    """A list of elements with such fields; with parts, each with a list of words."""
    members = [Member(name, Maybe(Piece(Span.words)), name) for name in fields]
    inner = [Member("parts", Items(Piece(Span.words)), "parts")] if parts else []
    return Record("Listed", (Member("lines", Items(Record("Line", (*members, *inner))), "lines"),))


def starts(record: Record, lines: list[dict[str, Any]], document: str) -> list[Any]:
    """Where the spans begin, in the answer's order."""
    return [start for start, _ in read(record, json.dumps({"lines": lines}), document).spans.values()]


def test_a_column_that_stands_once_leaves_the_other_columns_where_they_are() -> None:
    document = "Order\n2 lamp\n3 lamp\n1 cup\nAll prices in EUR. No lamp is taken back."
    lines = [{"item": item, "unit": "EUR"} for item in ("lamp", "lamp", "cup")]
    unit = document.index("EUR")
    assert starts(listed("item", "unit"), lines, document) == [8, unit, 15, unit, 22, unit]
    turned = [{"unit": "EUR", "item": item} for item in ("lamp", "lamp", "cup")]
    assert starts(listed("unit", "item"), turned, document) == [unit, 8, unit, 15, unit, 22]
    named_first = "In EUR: 2 lamp, 3 lamp, 1 cup"
    assert starts(listed("item", "unit"), lines, named_first) == [10, 3, 18, 3, 26, 3]


def test_columns_in_order_go_on_line_by_line() -> None:
    document = "lamp 2 EUR; lamp 3 EUR; cup 2 USD; lamp 1 EUR"
    lines = [{"item": item, "unit": unit} for item, unit in (("lamp", "EUR"), ("lamp", "EUR"), ("lamp", "EUR"))]
    assert starts(listed("item", "unit"), lines, document) == [0, 7, 12, 19, 35, 42]


def test_a_field_does_not_get_what_another_took_in_the_element_before() -> None:
    legs = [{"from": "Oslo", "to": "Bergen"}, {"from": "Bergen", "to": "Oslo"}]
    assert starts(listed("from", "to"), legs, "Oslo to Bergen, Bergen to Oslo") == [0, 8, 16, 26]
    airport = [{"from": "Oslo", "to": "Bergen Flesland"}, {"from": "Bergen", "to": "Oslo"}]
    assert starts(listed("from", "to"), airport, "Oslo to Bergen Flesland, Bergen to Oslo") == [0, 8, 25, 35]
    assert starts(listed("from", "to"), legs, "Oslo to Bergen to Oslo") == [0, 8, 8, 18]


def test_a_piece_may_be_in_an_element_twice_and_a_field_may_come_late() -> None:
    same = [{"item": "lamp", "word": "lamp"}, {"item": "lamp", "word": "lamp"}]
    assert starts(listed("item", "word"), same, "lamp and lamp") == [0, 0, 9, 9]
    late: list[dict[str, Any]] = [{"item": "lamp", "note": None}, {"item": "cup", "note": "red"}]
    assert starts(listed("item", "note"), late, "Wear red: lamp, red cup") == [10, 20, 16]


def test_lists_within_lists_go_on_where_the_element_before_has_ended() -> None:
    document = "A: cup, lamp, cup. B: lamp, cup. All in EUR"
    lines = [
        {"name": "A", "unit": "EUR", "parts": ["cup", "lamp", "cup"]},
        {"name": "B", "unit": "EUR", "parts": ["lamp", "cup"]},
    ]
    unit = document.index("EUR")
    found = starts(listed("name", "unit", parts=True), lines, document)
    assert found == [0, unit, 3, 8, 14, 19, unit, 22, 28]


def test_a_piece_of_words_is_no_part_of_a_word() -> None:
    with pytest.raises(AnswerRejected, match=r"lines\[0\].item: 'shade' does not stand in the document"):
        read(ORDER, answer("shade"), DOCUMENT)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("हिन्दी में", ["हिन्दी", " ", "में"]),
        ("Ame\u0301lie, 2.5", ["Ame\u0301lie", ",", " ", "2", ".", "5"]),
        ("👨\u200d👩\u200d👧 👍🏽!", ["👨\u200d👩\u200d👧", " ", "👍🏽", "!"]),
    ],
)
def test_words_have_their_marks(text: str, cut: list[str]) -> None:
    assert pieces(text, "words") == cut
    assert pieces(text, "chars") == list(text)


def test_nothing_is_said_of_a_null_but_where_it_stands() -> None:
    found = read(ORDER, '{"who (whose?)": null, "lines": []}', DOCUMENT)
    assert (found.json, found.spans) == ('{"who": null, "lines": []}', {})
    assert found.ranges["who"] == (17, 21)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("decimal", "4.50", Decimal("4.50")),
        ("decimal", "7", Decimal(7)),
        ("number", "2", 2.0),
        ("date", '"2024-02-29"', datetime.date(2024, 2, 29)),
        ("datetime", '"2024-02-29T23:30:00-01:00"', datetime.datetime(2024, 3, 1, 0, 30, tzinfo=datetime.UTC)),
        ("json", '{"a": [1.5, null]}', '{"a": [1.5, null]}'),
    ],
)
def test_values_are_of_their_types(kind: Kind, text: str, value: object) -> None:
    found = value_of(bare(kind) if kind != "json" else Leaf("json", {}), decoded(text))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("number", "1e999"), ("json", "[1e999]"), ("date", '"2023-02-29"'), ("decimal", '"x"'), ("integer", "null")],
)
def test_what_is_no_value_of_its_type_is_rejected(kind: Kind, text: str) -> None:
    with pytest.raises(AnswerRejected, match=f"no {kind}"):
        value_of(bare(kind) if kind != "json" else Leaf("json", {}), decoded(text))


def test_a_number_whose_exponent_no_decimal_has_is_rejected_and_ends_no_job() -> None:
    record = Record("Any", (Member("any", Leaf("json", {}), "any"),))
    assert read(record, '{"any": 1e9}', "").json == '{"any": 1e9}'
    with pytest.raises(AnswerRejected, match="no JSON from '1E46564850653759473516"):
        read(record, '{"any": 1E46564850653759473516}', "")


def test_a_choice_is_of_one_type() -> None:
    assert choice(["a", "a", "b"]).schema == {"enum": ["a", "b"]}

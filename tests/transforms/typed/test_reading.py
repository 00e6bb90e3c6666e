"""Where values stand in an answer, where pieces stand in the document, and what values become in Python."""

import datetime
from decimal import Decimal

import pytest

from model_manager.wire.errors import AnswerRejected
from transforms import Span
from transforms.typed.grammar import pieces
from transforms.typed.leaves import bare, choice
from transforms.typed.reading import read
from transforms.typed.shapes import Items, Kind, Leaf, Maybe, Member, Piece, Record
from transforms.typed.values import decoded, value_of

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

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipelines.pages.shown_rows import ShownRow, shown_row
from millrace.pipelines.pages.texts import Clipped, harmless

DOCUMENT = "Order A-7 of Anna Larsen: 2 lamps and 3 chairs."


def extracted(spans: dict[str, Any], document: str = DOCUMENT) -> ShownRow:
    row = {
        "id": "1",
        "number": "A-7",
        "lines": [{"item": "lamps", "quantity": 2}, {"item": "chairs", "quantity": 3}],
        "total": None,
        "confidence": -0.1,
        "confidences": {"number": 0.0, "lines[0].item": math.log(0.9), "lines[1].item": math.log(0.2)},
        "spans": spans,
    }
    return shown_row(row, Clipped(document))


def test_spans_are_marked_where_they_are_and_have_the_colours_of_their_fields() -> None:
    at = {
        name: {"start": DOCUMENT.index(text), "end": DOCUMENT.index(text) + len(text)}
        for name, text in (("number", "A-7"), ("lines[0].item", "lamps"), ("lines[1].item", "chairs"))
    }
    found = extracted(at)
    assert "".join(piece.text for piece in found.prompt) == DOCUMENT
    marked = {piece.path: (piece.text, piece.level) for piece in found.prompt if piece.field is not None}
    expected = {"number": ("A-7", "sure"), "lines[0].item": ("lamps", "likely"), "lines[1].item": ("chairs", "unsure")}
    assert marked == expected
    colours = {field.path: field.colour for field in found.fields}
    assert {piece.path: piece.field for piece in found.prompt if piece.path} == {
        path: colour for path, colour in colours.items() if colour is not None
    }
    assert {field.path: field.value.text for field in found.fields}["lines[1].quantity"] == "3"
    assert found.facts.confidence == pytest.approx(0.2)


@given(
    st.text(st.characters(codec=None), max_size=60),
    st.dictionaries(
        st.text(max_size=4), st.fixed_dictionaries({"start": st.integers(-2, 70), "end": st.integers(-2, 70)})
    ),
)
def test_whatever_spans_say_the_document_is_whole(document: str, spans: dict[str, Any]) -> None:
    found = extracted(spans, document)
    assert "".join(piece.text for piece in found.prompt) == harmless(document)


def test_a_long_document_is_clipped_and_spans_beyond_are_left_out() -> None:
    found = extracted({"number": {"start": 50_000, "end": 50_003}}, "x" * 60_000)
    assert (sum(len(piece.text) for piece in found.prompt), found.prompt_dropped) == (20_000, 40_000)
    assert [piece.field for piece in found.prompt] == [None]


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"id": "a", "text": "yes", "finish_reason": "stop"}, "yes"),
        ({"choices": [{"text": "one"}, {"text": "two"}], "finish_reason": "stop"}, "1. one\n2. two"),
        ({"scores": [{"continuation": "no", "logprob": -3.0}], "finish_reason": "stop"}, "no (-3.000)"),
        ({"embedding": [0.25, 0.5, 1.0, 2.0], "finish_reason": "stop"}, "4 numbers, the first 0.250, 0.500, 1.000"),
        ({"response": {"body": {"choices": [{"message": {"content": "hello"}}]}}, "error": None}, "hello"),
    ],
)
def test_each_kind_of_answer_is_shown(row: dict[str, Any], answer: str) -> None:
    assert shown_row(row).answer.text == answer


def test_labels_are_shown_with_their_probabilities_the_documents_own_first() -> None:
    row = {"labels": ["good"], "probabilities": {"bad": 0.25, "good": 0.75}, "usage": {}}
    found = [(field.path, field.value.text, field.probability, field.level) for field in shown_row(row).fields]
    assert found == [("good", "✓", 0.75, "unsure"), ("bad", "–", 0.25, "")]


def test_a_dead_letter_shows_its_row_and_why() -> None:
    found = shown_row({"id": "a", "error": "InvalidRequest", "reason": "no prompt", "row": {"x": "<b>"}})
    assert (found.why.text, found.facts.kind) == ("no prompt", "InvalidRequest")
    assert found.prompt[0].text == '{"x": "<b>"}'

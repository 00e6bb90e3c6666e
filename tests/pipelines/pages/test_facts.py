import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipelines.pages.facts import COLUMNS, Facts, facts_of
from millrace.pipelines.pages.shown_rows import shown_row
from millrace.pipelines.pages.table import Digest
from tests.pipelines.pages.hostile import ROWS
from tests.pipelines.pages.test_html import html

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        ({"id": "a", "text": "x", "finish_reason": "length", "usage": {"prompt_tokens": 3}}, Facts(False, "length", 3)),
        ({"finish_reason": "error", "error": {"kind": "EngineKiller", "message": "m"}}, Facts(True, "EngineKiller")),
        ({"id": "a", "error": "PromptTooLong", "reason": "long"}, Facts(True, "PromptTooLong")),
        ({"custom_id": "a", "response": None, "error": {"code": "InvalidRequest"}}, Facts(True, "InvalidRequest")),
        (
            {
                "response": {"body": {"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 2}}},
                "error": None,
            },
            Facts(False, "stop", None, None, 2),
        ),
        (
            {"probabilities": {"a": 0.25, "b": 0.75}, "labels": ["b"], "usage": {}},
            Facts(False, "answered", confidence=0.75),
        ),
    ],
)
def test_a_row_of_each_kind(row: dict[str, Any], facts: Facts) -> None:
    assert facts_of(row) == facts


def test_a_row_is_as_sure_as_its_least_sure_value() -> None:
    row = {"confidences": {"a": 0.0, "b": math.log(0.5)}, "error": "a field of the user's", "reason": "too"}
    found = facts_of(row)
    assert not found.failed
    assert found.confidence == pytest.approx(0.5)


@pytest.mark.parametrize("row", ROWS)
def test_no_hostile_row_ends_a_page(row: dict[str, Any]) -> None:
    digest = Digest(1, 1)
    digest.add(facts_of(row), 0)
    assert "<article" in html([(row, "p")])


def test_what_is_no_probability_is_not_shown_as_one() -> None:
    row = {"labels": ["a"], "probabilities": {"a": 7}, "usage": {}}
    assert facts_of(row).confidence is None
    assert [field.probability for field in shown_row(row).fields] == [None]
    assert facts_of({"confidences": {"a": 7.0}}).confidence is None


@pytest.mark.parametrize(("given", "shown"), [("length", "length"), (7, "7"), (["x"], '["x"]'), (None, "answered")])
def test_a_finish_reason_is_what_the_row_says(given: Any, shown: str) -> None:
    assert facts_of({"text": "x", "finish_reason": given, "usage": {}}).kind == shown
    body = {"choices": [{"finish_reason": given}]}
    assert facts_of({"response": {"body": body}}).kind == shown


@given(st.dictionaries(st.sampled_from([*COLUMNS, "text", "spans", "choices", "scores", "embedding", "row"]), ANYTHING))
def test_no_row_is_too_odd(row: dict[str, Any]) -> None:
    facts_of(row)
    shown_row(row)

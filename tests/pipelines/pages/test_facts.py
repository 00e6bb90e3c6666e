import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipelines.pages.facts import COLUMNS, Facts, facts_of
from millrace.pipelines.pages.shown_rows import shown_row

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
            Facts(False, "stop", confidence=0.75),
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


@given(st.dictionaries(st.sampled_from([*COLUMNS, "text", "spans", "choices", "scores", "embedding", "row"]), ANYTHING))
def test_no_row_is_too_odd(row: dict[str, Any]) -> None:
    facts_of(row)
    shown_row(row)

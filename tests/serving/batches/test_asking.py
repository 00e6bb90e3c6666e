"""A request of a batch as a row of a job: the same prompt and parameters, behind all that clients wait for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.sampling import SamplingParams
from millrace.serving.batches.asking import Written
from millrace.serving.openai.parameters import INTERACTIVE, sampling


@pytest.mark.parametrize(
    ("prompt", "name"),
    [("a text", "prompt"), ([1, 2], "prompt"), ([{"role": "user", "content": "a"}], "messages"), ("", "prompt")],
)
def test_a_prompt_is_in_the_column_of_its_kind(prompt: Any, name: str) -> None:
    row = Written(prompt, SamplingParams(priority=INTERACTIVE)).row("batch.1.0")
    assert row == {"id": "batch.1.0", name: prompt, "sampling_params": {}}


@given(st.integers(-(2**30), 2**30))
def test_a_row_comes_after_every_clients_request(priority: int) -> None:
    params = sampling({"priority": priority}, 4)
    row = Written("a", params).row("r")["sampling_params"]
    assert row.get("priority", 0) >= 0 > INTERACTIVE + 999
    assert row.get("priority", 0) <= max(0, priority)


def test_a_row_has_all_parameters() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "logit_bias": {"5": 1.0},
        "stop": ["a", "b"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "n": 2,
        "seed": 3,
        "logprobs": 2,
    }
    params = sampling(fields, 7)
    row = msgspec.json.decode(msgspec.json.encode(Written("a", params).row("r")))
    assert SamplingParams.parse(row["sampling_params"]) == msgspec.structs.replace(params, priority=0)

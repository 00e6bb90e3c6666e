"""An answer that `max_tokens` cut before its constraint was met is no answer, unless its request says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.wire.request import Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import drained, engine_for, no_long_waits, refusal, servers
from tests.model_manager.backends.stand_in_server import Servers

__all__ = ["no_long_waits", "servers"]

OPTIONS: dict[str, Any] = {"extra_parameters": "constraint"}
SCHEMA = {"json_schema": {"type": "object"}}
BACKREFERENCE = {"regex": r"(a)\1"}
"""Some servers take it; nothing here tells whether an answer meets it."""


def ended(servers: Servers, text: str, reason: str, constraint: Any, *, may_be_cut: bool = False) -> Any:
    """What a request ends in whose server answers so."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    server = servers.start(lambda _prompt, _tries: {"choices": [choice]})
    params = SamplingParams.parse({"constraint": constraint, "max_tokens": 5})
    with engine_for(server.url, **OPTIONS) as engine:
        engine.add(Request("a", [], params, text="a", may_be_cut=may_be_cut))
        (found,) = drained(engine).values()
    assert server.tries == {"a": 1}
    return found


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (SCHEMA, '{"a": 1, "b'),
        ({"json": True}, '{"a": "'),
        ({"choice": ["left", "right"]}, "rig"),
        ({"regex": "[0-9]{4}"}, "123"),
        ({"json_schema": {"enum": [10, 100, 1000]}}, "1"),
        ({"json_schema": {"type": "integer", "minimum": 100}}, " 12"),
    ],
)
def test_half_an_answer_fails_its_row_or_says_that_it_is_cut(servers: Servers, constraint: Any, text: str) -> None:
    failed = refusal(ended(servers, text, "length", constraint))
    assert failed == (
        "ConstraintNotMet",
        "the output is not complete after 5 tokens, and max_tokens=5 allows no more",
    )
    kept = ended(servers, text, "length", constraint, may_be_cut=True)
    assert isinstance(kept, Output)
    assert (kept.text, kept.is_cut) == (text, True)


@pytest.mark.parametrize(
    ("constraint", "text", "reason"),
    [
        (SCHEMA, '{"a": 1}', "length"),
        ({"json_schema": {"type": "array"}}, "[1e400]", "length"),
        ({"json_schema": {"enum": [10, 100, 1000]}}, " 100", "length"),
        ({"choice": ["left", "right"]}, "right", "length"),
        ({"regex": "[0-9]{4}"}, "1234", "length"),
        (SCHEMA, "I can't say.", "stop"),
        (BACKREFERENCE, "aa", "stop"),
        (None, '{"a": 1, "b', "length"),
    ],
)
def test_a_whole_answer_and_one_that_the_server_ended_is_an_answer(
    servers: Servers, constraint: Any, text: str, reason: str
) -> None:
    found = ended(servers, text, reason, constraint)
    assert isinstance(found, Output)
    assert (found.text, found.is_cut) == (text, False)

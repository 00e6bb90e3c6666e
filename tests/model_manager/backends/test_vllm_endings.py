"""Outputs that vLLM gives up, and rows that it refuses; an engine stands in for vLLM's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.model_manager.backends.vllm import _Running, _Vllm
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConstraintNotMet, InvalidRequest, RequestError
from millrace.model_manager.wire.sampling import SamplingParams

CONSTRAINED = SamplingParams(constraint=Constraint(regex="a+"))
SEQUENCE = cast(Sequence, SimpleNamespace(request_id="row", task="generate", token_ids=[1], adapter=None))


def output(reason: str | None) -> Any:
    """What a step of vLLM tells of a request, with one token."""
    completion = SimpleNamespace(token_ids=[5], logprobs=None, finish_reason=reason)
    return SimpleNamespace(
        request_id="row",
        finished=reason is not None,
        outputs=[completion],
        num_cached_tokens=0,
        prompt_logprobs=None,
    )


@pytest.mark.parametrize(
    ("reason", "params", "error"),
    [
        ("error", CONSTRAINED, ConstraintNotMet),
        ("error", SamplingParams(), RequestError),
        ("abort", CONSTRAINED, RequestError),
        ("abort", SamplingParams(), RequestError),
    ],
)
def test_an_output_that_vllm_gave_up_fails_its_row(
    reason: str, params: SamplingParams, error: type[RequestError]
) -> None:
    event = _Running(SEQUENCE, params).event(output(reason))
    assert type(event.error) is error
    assert f"finish_reason={reason}" in str(event.error)
    assert not event.token_ids


@pytest.mark.parametrize("reason", [None, "stop", "length"])
def test_an_output_that_goes_on_or_ends_well_has_its_tokens(reason: str | None) -> None:
    event = _Running(SEQUENCE, CONSTRAINED).event(output(reason))
    assert (event.error, event.token_ids, event.finished) == (None, [5], reason is not None)


class ClientError(Exception):
    """Stands in for vLLM's own class, which is no ValueError."""


class Refusing(_Vllm):
    """vLLM's engine that refuses each row."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._refusals = (ValueError, ClientError)
        self._engine = SimpleNamespace(add_request=self.refuse)

    def _wanted(self, _sequence: Sequence, _params: SamplingParams) -> Any:
        return None

    def refuse(self, *_: Any, **_options: Any) -> None:
        raise self._error


@pytest.mark.parametrize("kind", [ValueError, ClientError])
def test_what_vllm_says_of_a_row_that_it_refuses_is_one_line(kind: type[Exception]) -> None:
    library = Refusing(kind("1 validation error\n  a field is   odd\n" + "x " * 1000))
    with pytest.raises(InvalidRequest, match=r"^vLLM: 1 validation error a field is odd x .* …$") as raised:
        library.submit(SEQUENCE, SamplingParams())
    assert len(str(raised.value)) < 320

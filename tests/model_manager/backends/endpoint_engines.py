"""An engine of the back end `endpoint` in the test's process, and what its requests end in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.backends.endpoint import sending
from millrace.model_manager.backends.endpoint.engine import EndpointEngine, load
from millrace.model_manager.engine.interface import StepResult
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import Failure, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.stand_in_server import Servers, serving


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once; how long waits are is tested where they are computed."""
    monkeypatch.setattr(sending, "backoff", lambda _failures, **_least: 0.0)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Stand-ins for the tests of a file."""
    with serving() as found:
        yield found


@contextmanager
def engine_for(*urls: str, model: str = "m", max_num_seqs: int = 64, **options: Any) -> Iterator[EndpointEngine]:
    """An engine that asks these servers."""
    options = {"urls": ",".join(urls), **options}
    engine = load(
        ModelConfig(model=model, backend="endpoint", backend_options=options, max_num_seqs=max_num_seqs), Path()
    )
    try:
        yield engine
    finally:
        engine.close()


def asked(prompt: str, **params: Any) -> Request:
    """A request that has its prompt for an id."""
    return Request(prompt, [], SamplingParams(**params), text=prompt)


def answers(engine: EndpointEngine, prompts: list[str], **params: Any) -> dict[str, Output | Failure]:
    """What each prompt ends in."""
    for prompt in prompts:
        engine.add(asked(prompt, **params))
    return drained(engine)


def drained(engine: EndpointEngine) -> dict[str, Output | Failure]:
    """All that is to come, each once."""
    found: dict[str, Output | Failure] = {}
    while engine.has_work():
        result = engine.step()
        for answer in ended(result):
            assert answer.request_id not in found, "ended twice"
            found[answer.request_id] = answer
    assert engine.stats().waiting == 0
    return found


def ended(result: StepResult) -> list[Output | Failure]:
    """What came in a step."""
    found: list[Output | Failure] = list(result.outputs)
    return found + result.failures


def text(answer: Output | Failure) -> str:
    """The text of an answer that is no failure."""
    assert isinstance(answer, Output), answer
    return answer.text


def refusal(answer: Output | Failure) -> tuple[str, str]:
    """Kind and message of a failure."""
    assert isinstance(answer, Failure), answer
    return answer.error.kind, answer.error.message

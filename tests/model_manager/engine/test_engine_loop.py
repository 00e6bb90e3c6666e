"""The loop of an inference process tells its manager the answers that an engine has ready."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import msgspec
import pytest

from millrace.model_manager.engine.interface import Engine, StepResult
from millrace.model_manager.engine.manager_link import ManagerLink
from millrace.model_manager.engine.process import EngineLoop
from millrace.model_manager.wire.batching import MOST_TOKENS_ALONE
from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.messages import Message
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.status import EngineStats
from millrace.model_manager.wire.timings import Timings
from millrace.model_manager.wire.transport import encode


def _vector(name: str, size: int) -> Output:
    return Output(name, [], FinishReason.STOP, Timings(0.0, 0.0, 0.0), prompt_tokens=1, embedding=bytes(size))


class _Answering:
    """An engine that has its answers ready."""

    def __init__(self, *outputs: Output) -> None:
        self._outputs = outputs

    def has_work(self) -> bool:
        return bool(self._outputs)

    def step(self) -> StepResult:
        outputs, self._outputs = list(self._outputs), ()
        return StepResult(outputs=outputs)

    def stats(self) -> EngineStats:
        return EngineStats()


class _Idle(Exception):
    """The engine has nothing left to do."""


class _Frames:
    """A link that takes what the transport takes, and ends the loop where it would wait."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def receive(self, *, wait: bool) -> list[Message]:
        if wait:
            raise _Idle
        return []

    def working(self, **_: int) -> AbstractContextManager[None]:
        return nullcontext()

    def send(self, message: StepReport) -> None:
        encode(message)  # raises ProtocolError over the transport's limit
        self.reports.append(message)


def _reported(*outputs: Output) -> list[StepReport]:
    """What the loop says of a step that gives these."""
    link = _Frames()
    with pytest.raises(_Idle):
        EngineLoop(cast(Engine, _Answering(*outputs)), cast(ManagerLink, link)).serve()
    return link.reports


def test_an_answer_larger_than_a_message_is_a_failure_of_its_request_alone() -> None:
    small, large = (_vector(name, size) for name, size in (("s", 8), ("l", 2**26)))
    (report,) = _reported(large, small)
    assert report.outputs == [small]
    assert [(failure.request_id, failure.error.kind) for failure in report.failures] == [("l", "InvalidRequest")]


def test_what_takes_a_message_whole_has_one_of_its_own_and_failures_have_others() -> None:
    whole = _vector("whole", 5 * MOST_TOKENS_ALONE)
    large = _vector("", 2**26)
    refused = [msgspec.structs.replace(large, request_id=f"{number:0>5000}") for number in range(1000)]
    reports = _reported(*refused, whole)
    assert [output for report in reports for output in report.outputs] == [whole]
    failed = [failure.request_id for report in reports for failure in report.failures]
    assert failed == [output.request_id for output in refused]

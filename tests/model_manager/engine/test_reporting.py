"""What an inference process tells its manager of tokens: at once for streams, later for others, and before it ends."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from millrace.model_manager.engine.interface import StepResult
from millrace.model_manager.engine.process import EngineLoop
from millrace.model_manager.engine.reporting import _MOST_TOKENS, Reporter
from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.messages import Submit
from millrace.model_manager.wire.request import Failure, FinishReason, NewText, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import EngineStats
from millrace.model_manager.wire.timings import Timings


class Reports:
    """A reporter whose time a test sets, and what it has sent."""

    def __init__(self, *streamed: str) -> None:
        self.sent: list[StepReport] = []
        self.now = 0.0
        self.reporter = Reporter(self.sent.append, EngineStats, self.now)
        for name in streamed:
            self.reporter.accepted(Request(name, [1], SamplingParams(), stream=True))

    def step(self, idle: bool = False, failures: tuple[Failure, ...] = (), **tokens: list[int]) -> list[StepReport]:
        """Report a step with these new tokens; what was sent of it."""
        return self.report(StepResult(new_token_ids=tokens, failures=list(failures)), idle=idle)

    def report(self, result: StepResult, idle: bool = False) -> list[StepReport]:
        before = len(self.sent)
        self.reporter.report(result, [], self.now, idle=idle)
        return self.sent[before:]


def output(name: str, *token_ids: int) -> Output:
    return Output(name, list(token_ids), FinishReason.LENGTH, Timings(0.0, 0.0, 0.0), prompt_tokens=1)


def test_tokens_that_nobody_streams_are_sent_together_once_they_are_due() -> None:
    reports = Reports()
    assert [each.progress for each in reports.step(a=[1])] == [{"a": [1]}]
    assert reports.step(a=[2], b=[7]) == []
    reports.now = 0.09
    assert reports.step(a=[3]) == []
    reports.now = 0.11
    assert [each.progress for each in reports.step(b=[8])] == [{"a": [2, 3], "b": [7, 8]}]


def test_tokens_wait_for_no_further_token() -> None:
    reports = Reports()
    reports.step(a=[1])
    reports.step(a=[2])
    reports.now = 0.11
    assert [each.progress for each in reports.step()] == [{"a": [2]}]


def test_the_first_tokens_after_a_pause_are_sent_at_once() -> None:
    reports = Reports()
    reports.now = 0.2
    assert reports.step() == []
    assert [each.progress for each in reports.step(a=[1])] == [{"a": [1]}]


def test_tokens_of_a_stream_are_sent_with_their_step() -> None:
    reports = Reports("s")
    reports.step(a=[1])
    assert reports.step(a=[2]) == []
    assert [each.progress for each in reports.step(a=[3], s=[7])] == [{"a": [2, 3], "s": [7]}]
    assert [each.progress for each in reports.step(s=[8])] == [{"s": [8]}]


def test_a_stream_that_has_ended_hurries_no_other_request() -> None:
    reports = Reports("s", "t")
    reports.step(s=[7], t=[8])
    reports.report(StepResult(outputs=[output("s", 7, 8)], failures=[refusal("t")]))
    assert reports.step(s=[1], t=[2]) == []


def refusal(name: str) -> Failure:
    return Failure(name, InvalidRequest("no").info())


def test_answers_are_sent_at_once_without_the_tokens_that_wait() -> None:
    reports = Reports()
    reports.step(a=[1], b=[1], c=[1])
    reports.step(a=[2], b=[2], c=[2])
    (report,) = reports.report(StepResult(outputs=[output("a", 1, 2, 3)], failures=[refusal("b")]))
    assert (len(report.outputs), len(report.failures), report.progress) == (1, 1, {})
    reports.now = 0.11
    assert [each.progress for each in reports.step(c=[3])] == [{"c": [2, 3]}]


def test_many_tokens_wait_for_no_time() -> None:
    reports = Reports()
    reports.step(a=[1])
    assert reports.step(a=[2] * (_MOST_TOKENS - 1)) == []
    assert [len(each.progress["a"]) for each in reports.step(a=[3])] == [_MOST_TOKENS]
    assert reports.step(a=[4]) == []


def test_statistics_come_twice_a_second_and_before_the_engine_idles() -> None:
    reports = Reports()
    assert [each.stats for each in reports.step(a=[1])] == [None]
    reports.now = 0.51
    assert [each.stats for each in reports.step(a=[1])] == [EngineStats()]
    assert [each.stats for each in reports.step(idle=True)] == [EngineStats()]


def test_log_probabilities_and_texts_stay_with_their_tokens() -> None:
    reports = Reports()
    reports.step(a=[1])
    for token in (2, 3):
        logprobs = {"a": Logprobs([-float(token)], [True])}
        texts = {"a": NewText(f"<{token}>", [5] if token == 2 else [])}
        reports.report(StepResult(new_token_ids={"a": [token]}, new_logprobs=logprobs, new_texts=texts))
    reports.now = 0.11
    (report,) = reports.step()
    assert report.progress == {"a": [2, 3]}
    assert report.logprobs == {"a": Logprobs([-2.0, -3.0], [True, True])}
    assert report.texts == {"a": NewText("<2><3>", [5])}


class _Failing:
    """An engine whose third step raises, and its link."""

    def __init__(self) -> None:
        self.sent: list[StepReport] = []
        self.steps = 0

    def add(self, _: Request) -> None: ...

    def has_work(self) -> bool:
        return True

    def step(self) -> StepResult:
        self.steps += 1
        if self.steps == 3:
            raise OSError("the device is gone")
        return StepResult(new_token_ids={"a": [self.steps]})

    def stats(self) -> EngineStats:
        return EngineStats()

    def receive(self, *, wait: bool) -> list[Submit]:
        return [] if wait else [Submit("", [Request("a", [1], SamplingParams())])]

    def working(self, **_: int) -> AbstractContextManager[None]:
        return nullcontext()

    def send(self, message: StepReport) -> None:
        self.sent.append(message)


def test_a_step_that_raises_costs_no_token_of_the_steps_before_it() -> None:
    engine: Any = _Failing()
    with pytest.raises(OSError, match="gone"):
        EngineLoop(engine, engine, clock=lambda: 0.0).serve()
    assert [each.progress for each in engine.sent] == [{"a": [1]}, {"a": [2]}]

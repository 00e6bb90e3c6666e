"""What an inference process tells its manager after each step: answers at once, new tokens from time to time.

A request that is streamed has its tokens reported with the step that makes them. Tokens of the others wait up to
`_TOKENS_EVERY`: the manager needs them only if this process dies, and each message costs both processes as much as a
small step. If the process dies before the first tokens of a request are due, the manager counts this death as one
without progress: after `max_deaths_per_request` of them in a row the request is suspected, and runs alone; it fails
only if its process dies then too (manager/requests.py). Knows messages and step results; not what an engine is.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..wire.batching import failure_batches, fits_alone, fits_among_others, output_batches
from ..wire.engine_messages import StepReport
from ..wire.errors import InvalidRequest
from ..wire.logprobs import Logprobs
from ..wire.request import Failure, NewText, Output, Request
from ..wire.status import EngineStats
from .interface import StepResult

_TOKENS_EVERY = 0.1
"""Seconds: tokens of this long are generated again, at most, if the process is killed."""
_MOST_TOKENS = 2**14
"""Tokens that wait, at most: they make one message, each with its alternatives."""
_STATS_EVERY = 0.5


class Reporter:
    """Sends the results of steps; some of the new tokens wait here until they are due."""

    def __init__(self, send: Callable[[StepReport], None], stats: Callable[[], EngineStats], now: float) -> None:
        """`stats` is asked when statistics are due; `now`, here and below, in seconds of one clock."""
        self._send = send
        self._stats = stats
        self._stats_due = now + _STATS_EVERY
        self._tokens_due = now
        self._streamed: set[str] = set()
        self._waiting = StepResult()
        self._num_waiting = 0

    def accepted(self, request: Request) -> None:
        """The engine has taken a request."""
        if request.stream:
            self._streamed.add(request.request_id)

    def report(self, result: StepResult, refused: list[Failure], now: float, *, idle: bool) -> None:
        """Report a step, with requests that the engine did not take; statistics twice a second, and before it idles."""
        failures = refused + result.failures
        self._keep(result)
        for request_id in (*(each.request_id for each in result.outputs), *(each.request_id for each in failures)):
            self._forget(request_id)
        stats = self._due_stats(now, idle)
        tokens = self._due_tokens(result, now)
        if not (result.outputs or failures or stats or tokens.new_token_ids):
            return
        *before, last = _reports(result.outputs, failures)
        for report in before:
            self._send(report)
        self._send(_with_tokens(msgspec.structs.replace(last, stats=stats), tokens))

    def flush(self) -> None:
        """Send the tokens that wait: the process is about to end."""
        if self._num_waiting:
            self._send(_with_tokens(StepReport(), self._taken()))

    def _keep(self, result: StepResult) -> None:
        waiting = self._waiting
        for request_id, tokens in result.new_token_ids.items():
            waiting.new_token_ids.setdefault(request_id, []).extend(tokens)
            self._num_waiting += len(tokens)
        for request_id, logprobs in result.new_logprobs.items():
            before = waiting.new_logprobs.get(request_id)
            waiting.new_logprobs[request_id] = logprobs if before is None else Logprobs.join([before, logprobs])
        for request_id, text in result.new_texts.items():
            earlier = waiting.new_texts.get(request_id)
            waiting.new_texts[request_id] = text if earlier is None else _joined(earlier, text)

    def _forget(self, request_id: str) -> None:
        """A request has ended: its answer has all its tokens."""
        self._streamed.discard(request_id)
        self._num_waiting -= len(self._waiting.new_token_ids.get(request_id, ()))
        self._waiting.forget_progress(request_id)

    def _due_stats(self, now: float, idle: bool) -> EngineStats | None:
        if not idle and now < self._stats_due:
            return None
        self._stats_due = now + _STATS_EVERY
        return self._stats()

    def _due_tokens(self, result: StepResult, now: float) -> StepResult:
        """The tokens that wait, if it is time or if one of them is streamed; else none."""
        in_time = now < self._tokens_due and self._num_waiting < _MOST_TOKENS
        if not self._num_waiting or (in_time and self._streamed.isdisjoint(result.new_token_ids)):
            return StepResult()
        self._tokens_due = now + _TOKENS_EVERY
        return self._taken()

    def _taken(self) -> StepResult:
        taken, self._waiting, self._num_waiting = self._waiting, StepResult(), 0
        return taken


def _with_tokens(report: StepReport, tokens: StepResult) -> StepReport:
    return msgspec.structs.replace(
        report, progress=tokens.new_token_ids, logprobs=tokens.new_logprobs, texts=tokens.new_texts
    )


def _joined(earlier: NewText, later: NewText) -> NewText:
    return NewText(earlier.text + later.text, earlier.prompt_token_ids or later.prompt_token_ids)


def _reports(outputs: list[Output], failures: list[Failure]) -> list[StepReport]:
    """Finished requests, in as few reports as messages allow; the last has room for more."""
    failures = failures + [_too_large(output) for output in outputs if not fits_alone(output)]
    *many, rest = [*output_batches(filter(fits_alone, outputs))] or [[]]
    *more, failures = [*failure_batches(failures)] or [[]]
    if not all(map(fits_among_others, rest)):
        many, rest = [*many, rest], []
    reports = [StepReport(outputs=batch) for batch in many] + [StepReport(failures=batch) for batch in more]
    return [*reports, StepReport(outputs=rest, failures=failures)]


def _too_large(output: Output) -> Failure:
    error = InvalidRequest("its answer is larger than a message: ask for fewer logprobs or prompt_logprobs")
    return Failure(output.request_id, error.info())

"""An Engine over a library that generates tokens from token ids: it judges each ending itself, as ours does.

The library gives tokens; whether an end-of-sequence token, a stop token or string, the budget or the deadline ends the
output is decided here, from the same `Sequence` as in our engine. So stop strings, progress and counts are the same
whatever the library makes of them. Knows no library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Protocol

import msgspec
import numpy as np

from ..engine.counters import EngineCounters
from ..engine.interface import StepResult
from ..engine.scheduling.admission import admitted
from ..engine.scheduling.deadlines import Deadlines
from ..engine.scheduling.readings import EmbedReading, ScoreReading, Scores
from ..engine.scheduling.sequence import Sequence, SequenceStatus
from ..engine.scheduling.stopping import Ending, StopRules
from ..grammars.compiling import check
from ..wire.constraint import Constraint
from ..wire.errors import ConstraintNotMet, RequestError, not_complete
from ..wire.logprobs import Logprobs
from ..wire.request import FinishReason, Request
from ..wire.sampling import SamplingParams
from ..wire.status import EngineStats, ModelInfo


@dataclass
class Event:
    """What a library did for a request since the last one."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    """Tokens generated since, an end-of-sequence token included."""
    logprobs: Logprobs | None = None
    """One entry for each of them, if the request asked."""
    finished: bool = False
    """The library has ended it."""
    error: RequestError | None = None
    """It failed, and has ended."""
    cached_tokens: int = 0
    """Prompt tokens that the library did not compute again."""
    scores: Scores | None = None
    """Scores of the prompt's tokens that were asked for: of a score, or of a generation with prompt_logprobs."""
    embedding: list[float] | None = None
    """The pooled states of an embedding, not scaled."""


class Library(Protocol):
    """Generates tokens for many sequences at once."""

    def submit(self, sequence: Sequence, params: SamplingParams) -> None:
        """Begin to generate after `sequence.token_ids`, the prompt and what an earlier engine had generated, at most
        `sequence.conditions.max_tokens - sequence.num_output_tokens` tokens; or what its task asks.

        `params` are the request's, its constraint included. Raises RequestError for what the library refuses.
        """

    def cancel(self, request_id: str) -> None:
        """End a sequence; no event of it comes any more. Unknown ids are ignored."""

    def poll(self) -> list[Event]:
        """Advance by a step, or wait for the tokens of the one that runs: the manager times this call. Where none runs,
        wait at most some hundredths of a second.
        """

    def num_running(self) -> int:
        """Sequences that run now; the others wait."""


class HostedEngine:
    """Continuous batching by a library."""

    def __init__(
        self,
        info: ModelInfo,
        library: Library,
        stop_rules: StopRules,
        meets: Callable[[Constraint, list[int]], bool] = lambda _constraint, _tokens: True,
        goes_on: Callable[[SamplingParams], bool] = lambda _params: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`meets` looks at each whole output of a library that does not always hold one to its constraint. `goes_on` is
        False for a request whose tokens a further engine could not go on from, as this one would.
        """
        self.info = info
        self._library = library
        self._stop_rules = stop_rules
        self._clock = clock
        self._sequences: dict[str, Sequence] = {}
        self._meets = meets
        self._goes_on = goes_on
        self._beginning_anew: set[str] = set()
        """Requests that begin anew in the next engine, so nobody is told their tokens before they end."""
        self._held: dict[str, Constraint] = {}
        """The constraints that the library holds outputs to, by request."""
        self._arrivals = 0
        self._deadlines = Deadlines(clock)
        self._ended: list[Sequence] = []
        self._counters = EngineCounters(clock)

    def add(self, request: Request) -> None:
        """Queue a request; raises InvalidRequest or PromptTooLong, as ours does, and what the library refuses."""
        self._arrivals += 1
        params = request.params
        if params.constraint is not None:
            check(params.constraint)  # a library may end the process over one that it cannot compile
        free = msgspec.structs.replace(request, params=msgspec.structs.replace(params, constraint=None))
        sequence = admitted(
            free,
            vocab_size=self.info.vocab_size,
            max_len=self.info.max_model_len,
            stop_rules=self._stop_rules,
            known=self._sequences,
            now=self._clock(),
            order=self._arrivals,
        )
        if sequence.is_over:
            self._ended.append(sequence)
            return
        self._library.submit(sequence, params)
        self._sequences[request.request_id] = sequence
        self._deadlines.add(sequence)
        if params.constraint is not None and request.task == "generate":
            self._held[request.request_id] = params.constraint
        if params.constraint is not None or not (request.stream or self._goes_on(params)):
            self._beginning_anew.add(request.request_id)

    def abort(self, request_id: str) -> None:
        """End a request; its Output, with the tokens it has, comes with the next step. Unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._end(sequence, FinishReason.ABORT)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences or self._ended)

    def step(self) -> StepResult:
        """Take in what the library generated."""
        for sequence in self._deadlines.passed():
            self._end(sequence, FinishReason.DEADLINE)
        result, started, running = StepResult(), self._clock(), self._num_running
        for event in self._library.poll() if self._sequences else ():
            if (found := self._sequences.get(event.request_id)) is not None:
                self._take(found, event, started, result)
        now = self._clock()
        for sequence in self._ended:
            result.forget_progress(sequence.request_id)
            result.add(sequence.answer(now))
        self._ended.clear()
        self._counters.stepped(running)
        return result

    @property
    def _num_running(self) -> int:
        return min(len(self._sequences), self._library.num_running())

    def stats(self) -> EngineStats:
        """A snapshot."""
        running = self._num_running
        return EngineStats(running=running, waiting=len(self._sequences) - running, **self._counters.snapshot())

    def _take(self, sequence: Sequence, event: Event, started: float, result: StepResult) -> None:
        now = self._clock()
        if sequence.scheduled_at is None:
            sequence.scheduled_at, sequence.first_token_at = started, now
            sequence.cached_tokens = event.cached_tokens
            self._counters.prompted(sequence.num_prompt_tokens, sequence.cached_tokens or 0)
        if event.error is not None:
            self._fail(sequence, event.error, result)
            return
        self._read(sequence, event)
        for token_id, logprobs in _tokens(event):
            self._counters.generated(now, 1)
            ending = sequence.append(token_id, logprobs)
            if sequence.request_id not in self._beginning_anew:
                result.note_progress(sequence.request_id, token_id, logprobs)
            if ending is not None:
                self._finish(sequence, result, cancel=not event.finished or token_id != event.token_ids[-1])
                return
        if event.finished:
            sequence.close()
            self._finish(sequence, result, cancel=False)

    def _read(self, sequence: Sequence, event: Event) -> None:
        reading = sequence.reading
        if isinstance(reading, ScoreReading) and event.scores is not None and not reading.done:
            reading.add(event.scores)
        elif isinstance(reading, EmbedReading) and event.embedding is not None and not reading.done:
            count = reading.stop - reading.next
            reading.add(np.array(event.embedding) * count, count)

    def _finish(self, sequence: Sequence, result: StepResult, *, cancel: bool) -> None:
        """Finish a sequence that has its ending. A constrained output that the budget cut is no answer."""
        ending = sequence.ending
        assert ending is not None
        if cancel:
            self._library.cancel(sequence.request_id)
        if (constraint := self._held.get(sequence.request_id)) is not None:
            try:
                sequence.ending = self._ending_of_held(sequence, constraint, ending)
            except ConstraintNotMet as error:
                self._fail(sequence, error, result)
                return
        self._leave(sequence)

    def _ending_of_held(self, sequence: Sequence, constraint: Constraint, ending: Ending) -> Ending:
        """The ending of an output under a constraint; raises ConstraintNotMet for one that is no answer."""
        by_token = ending.matched is None and sequence.token_ids[-1] in self._stop_rules.eos_token_ids
        output = sequence.token_ids[sequence.num_prompt_tokens :]
        by_length = ending.reason is FinishReason.LENGTH
        if by_length and not sequence.may_be_cut:
            raise not_complete(len(output), sequence.params.max_tokens)
        if not by_length and not self._meets(constraint, output[:-1] if by_token else output):
            raise ConstraintNotMet("the output does not meet its constraint, which the library did not hold it to")
        return Ending(ending.reason, ending.matched, complete=not by_token, is_cut=by_length)

    def _fail(self, sequence: Sequence, error: RequestError, result: StepResult) -> None:
        self._forget(sequence)
        result.forget_progress(sequence.request_id)
        result.failures.append(sequence.failure(error))

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.ending = Ending(reason, complete=sequence.request_id in self._held)
        self._library.cancel(sequence.request_id)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._forget(sequence)
        self._ended.append(sequence)

    def _forget(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.FINISHED
        del self._sequences[sequence.request_id]
        self._held.pop(sequence.request_id, None)
        self._beginning_anew.discard(sequence.request_id)


def _tokens(event: Event) -> Iterator[tuple[int, Logprobs | None]]:
    """Each new token with its own log-probabilities."""
    given: Iterable[Logprobs | None] = repeat(None) if event.logprobs is None else event.logprobs.each()
    return zip(event.token_ids, given, strict=False)

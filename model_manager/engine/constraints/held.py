"""Sequences that sit out steps while a thread beside the loop does what a slow constraint takes.

To advance a matcher of a very ambiguous grammar by a token, and to make the next mask, may take a second. There is one
such thread: a grammar's matchers share a lexer that only one of them can use at a time. Knows turns and jobs; not
what is sampled.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

from ...grammars.grammar import start_thread
from ...grammars.guide import Guide
from ...wire.errors import RequestError
from ..interface import StepResult
from ..scheduling.sequence import Sequence, SequenceStatus
from ..speculation.drafts import SamplingRound
from .masks import Masks

_T = TypeVar("_T")
_NICE = 5
"""How far the thread stands back. Further is worse: the loop waits for a thread that has the interpreter's lock."""
Then = Callable[[StepResult], object]
"""What to do with a sequence that is not held any more."""


class _Hold(NamedTuple):
    sequence: Sequence
    job: Future[None]
    then: Then


class HeldSequences:
    """Running sequences that are not scheduled; they keep their rows and blocks."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._thread: ThreadPoolExecutor | None = None
        self._held: list[_Hold] = []

    def submit(self, job: Callable[[], _T]) -> Future[_T]:
        """Do a job in the thread, after those that were submitted before."""
        self._thread = self._thread or ThreadPoolExecutor(1, "slow-constraints", _stand_back)
        return self._thread.submit(job)

    def in_time(
        self, rounds: Iterator[SamplingRound], logits: Any, sample: Callable[[Sequence, Any, StepResult], object]
    ) -> Iterator[SamplingRound]:
        """The rounds without sequences whose masks are late, which are sampled from their logits later."""
        for sampling_round in rounds:
            late, filling = self._masks.late()
            if filling is None:
                yield sampling_round
                continue
            kept = []
            for place, sequence in enumerate(sampling_round.sequences):
                if sequence in late and sequence.guide is not None:
                    row = int(sampling_round.rows[place])
                    then = functools.partial(sample, sequence, logits[row : row + 1].clone())
                    sequence.guide.note_late()
                    self._hold(sequence, functools.partial(_go_on_after, filling, sequence.guide), then)
                else:
                    kept.append(place)
            if kept:
                yield SamplingRound(sampling_round.rows[kept], [sampling_round.sequences[place] for place in kept])

    def take(self, sequence: Sequence, token_id: int, then: Then) -> None:
        """Let the constraint of a running sequence take a token and make the next mask in the thread."""
        assert sequence.guide is not None
        self._hold(sequence, functools.partial(sequence.guide.go_on, token_id), then)

    def ready(self) -> Iterator[tuple[Sequence, RequestError | None, Then]]:
        """The sequences that run and are not held any more: with the error that ends them, and what to do without."""
        held, self._held = self._held, []
        for hold in held:
            if not hold.job.done():
                self._held.append(hold)
                continue
            hold.sequence.is_held = False
            if hold.sequence.status is SequenceStatus.RUNNING:
                yield hold.sequence, _error(hold.job), hold.then

    def _hold(self, sequence: Sequence, job: Callable[[], None], then: Then) -> None:
        sequence.is_held = True
        self._held.append(_Hold(sequence, self.submit(job), then))

    def wait(self, seconds: float) -> None:
        """Wait until a job is done, at most this long."""
        wait([hold.job for hold in self._held], seconds, FIRST_COMPLETED)


def _error(job: Future[None]) -> RequestError | None:
    """The request's error that a job has ended with; raises any other."""
    try:
        job.result()
    except RequestError as error:
        return error
    return None


def _go_on_after(filling: Future[None], guide: Guide) -> None:
    """Make a mask that was late, once nobody else uses the guide."""
    filling.result()
    guide.go_on()


def _stand_back() -> None:
    """Let the engine's other threads go first; llguidance's own thread, which this one starts, inherits that."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
    start_thread()

"""Sequences that sit out steps while a thread beside the loop does what a slow constraint takes.

To advance a matcher of a very ambiguous grammar by a token, and to make the next mask, may take a second. There is one
such thread: a grammar's matchers share a lexer that only one of them can use at a time. Knows sequences and jobs; not
logits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple, TypeVar

from ...grammars import apart
from ..scheduling.sequence import Sequence, SequenceStatus

_T = TypeVar("_T")
_NICE = 5
"""How far the thread stands back. Further is worse: the loop waits for a thread that has the interpreter's lock."""


class _Hold(NamedTuple):
    sequence: Sequence
    job: Future[None]
    then: Callable[..., None]


class HeldSequences:
    """Running sequences that are not scheduled; they keep their rows and blocks."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._held: list[_Hold] = []

    def __len__(self) -> int:
        return len(self._held)

    def submit(self, job: Callable[[], _T]) -> Future[_T]:
        """Do a job in the thread, after those that were submitted before."""
        self._thread = self._thread or ThreadPoolExecutor(1, "slow-constraints", _stand_back)
        return self._thread.submit(job)

    def hold(self, sequence: Sequence, job: Callable[[], None], then: Callable[..., None]) -> None:
        """Hold a running sequence until a job in the thread is done; `then` is what to do next."""
        sequence.is_held = True
        self._held.append(_Hold(sequence, self.submit(job), then))

    def ready(self) -> Iterator[tuple[Sequence, Future[None], Callable[..., None]]]:
        """The sequences that run and whose jobs are done, which are not held any more; and what to do next."""
        held, self._held = self._held, []
        for hold in held:
            sequence, job, then = hold
            if not job.done():
                self._held.append(hold)
                continue
            sequence.is_held = False
            if sequence.status is SequenceStatus.RUNNING:
                yield sequence, job, then

    def wait(self, seconds: float) -> None:
        """Wait until a job is done, at most this long."""
        wait([hold.job for hold in self._held], seconds, FIRST_COMPLETED)


def _stand_back() -> None:
    """Let the engine's other threads go first; llguidance's own thread, which this one starts, inherits that."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
    apart.start()

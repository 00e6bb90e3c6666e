"""The latest requests of this server: how long each waited, read its prompt, and generated. Keeps no text."""

from __future__ import annotations

import threading
import time
from collections import deque

from millrace.model_manager.wire.job_progress import RowLife

from ..http.observers import Observed
from ..metrics.request_times import Phases, phases

_MOST = 20
_COMPUTED_HERE = ("/tokenize", "/detokenize")
"""Paths whose answers are not the model's."""


class RecentRequests:
    """An observer (observers.py). Requests end in the event loop, and other threads read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, Observed] = {}
        self._ended = deque[RowLife](maxlen=_MOST)

    def started(self, request: Observed) -> None:
        """See Observer."""
        if request.route not in _COMPUTED_HERE:
            with self._lock:
                self._running[id(request)] = request

    def first_token(self, request: Observed) -> None:
        """See Observer; a look at running requests finds it."""

    def finished(self, request: Observed) -> None:
        """See Observer."""
        with self._lock:
            if self._running.pop(id(request), None) is not None:
                self._ended.append(_ended(request))

    def lives(self) -> list[RowLife]:
        """The latest that ended, and those that run."""
        with self._lock:
            now = time.monotonic()
            running = sorted(self._running.values(), key=lambda request: request.since)[-_MOST:]
            return [*self._ended, *(_running(request, now) for request in running)]


def _running(request: Observed, now: float) -> RowLife:
    """The life of a running request so far. The time before its first token is not divided yet."""
    first = now if request.first_token is None else request.first_token
    return RowLife(at=time.time(), of=request.route, prefill=first - request.since, decode=now - first, state="running")


def _ended(request: Observed) -> RowLife:
    queued, prefill, decode = phases(request) if request.answers else _until_it_failed(request)
    failed = bool(request.error) or request.status >= 400
    return RowLife(
        at=time.time(),
        of=request.route,
        queued=queued,
        prefill=prefill,
        decode=decode,
        prompt_tokens=request.prompt_tokens,
        generated_tokens=request.generated_tokens,
        state="failed" if failed else "done",
        error=request.error or (str(request.status) if failed else ""),
    )


def _until_it_failed(request: Observed) -> Phases:
    """Without answers the time before the first token is not divided."""
    first = request.seconds if request.first_token is None else request.first_token - request.since
    return Phases(0.0, first, request.seconds - first)

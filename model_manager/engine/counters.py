"""Counters of what an engine has done so far, and its recent speed. Knows times and counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypedDict

import psutil  # type: ignore[import-untyped, unused-ignore]

from ..grammars.grammar_counts import GrammarCounts

_WINDOW = 5.0
_SLICE = 0.1
_MEMORY_INTERVAL = 1.0


class Counted(TypedDict):
    """Fields of EngineStats that are counted here."""

    steps: int
    batch: float
    blocks_held: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    grammars_compiled: int
    grammar_seconds: float
    grammar_hits: int
    tokens_per_s: float
    rss_mb: float


class EngineCounters:
    """Counters since the start; memory is read at most once a second."""

    def __init__(self, clock: Callable[[], float], shared: int = 0, grammars: GrammarCounts | None = None) -> None:
        """`shared`: bytes of this process's memory that count as another's; `grammars`: counts of compilations."""
        self.steps = 0
        self._clock = clock
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generated_tokens = 0
        self._drafted_tokens = 0
        self._accepted_tokens = 0
        self._throughput = Throughput(clock())
        self._steps_lately = Throughput(clock())
        self._batches = Throughput(clock())
        self._blocks = Throughput(clock())
        self._process = psutil.Process()
        self._shared = shared
        self._grammars = grammars or GrammarCounts()
        self._memory_at: float | None = None
        self._memory_mb = 0.0

    def stepped(self, batch: int, blocks: int = 0) -> None:
        """Count a step with so many sequences, while so many blocks are in use."""
        now = self._clock()
        self.steps += 1
        self._steps_lately.add(now, 1)
        self._batches.add(now, batch)
        self._blocks.add(now, blocks)

    def prompted(self, tokens: int, cached: int) -> None:
        """Count a prompt that runs for the first time, and how many of its tokens were not computed again."""
        self._prompt_tokens += tokens
        self._cached_tokens += cached

    def generated(self, now: float, count: int) -> None:
        """Count sampled tokens."""
        self._generated_tokens += count
        self._throughput.add(now, count)

    def speculated(self, drafted: int, accepted: int) -> None:
        """Count the drafts of a sequence that a step computed, and how many were kept."""
        self._drafted_tokens += drafted
        self._accepted_tokens += accepted

    def snapshot(self) -> Counted:
        """All counters now."""
        now = self._clock()
        if self._memory_at is None or now - self._memory_at >= _MEMORY_INTERVAL:
            self._memory_at = now
            self._memory_mb = (self._process.memory_info().rss - self._shared) / 2**20
        steps = max(self._steps_lately.total(now), 1)
        compiled, seconds, hits = self._grammars.now()
        return Counted(
            steps=self.steps,
            batch=self._batches.total(now) / steps,
            blocks_held=self._blocks.total(now) / steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            grammars_compiled=compiled,
            grammar_seconds=seconds,
            grammar_hits=hits,
            tokens_per_s=self._throughput.rate(now),
            rss_mb=self._memory_mb,
        )


class Throughput:
    """Events per second in the last five seconds, in slices of a tenth of a second."""

    def __init__(self, start: float) -> None:
        """`start` and every later time in seconds, on one clock."""
        self._start = start
        self._slices: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """Count events that happen now."""
        if self._slices and now - self._slices[-1][0] < _SLICE:
            began, earlier = self._slices.pop()
            self._slices.append((began, earlier + count))
        else:
            self._slices.append((now, count))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Events per second over the window, or since the start if that is later."""
        seconds = min(_WINDOW, now - self._start)
        return self.total(now) / seconds if seconds > 0 else 0.0

    def total(self, now: float) -> int:
        """Events within the window."""
        self._forget(now)
        return sum(count for _, count in self._slices)

    def _forget(self, now: float) -> None:
        while self._slices and self._slices[0][0] <= now - _WINDOW:
            self._slices.popleft()

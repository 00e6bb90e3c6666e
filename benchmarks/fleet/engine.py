"""One machine's engine in simulated time. It knows steps and rows, and neither machines' lives nor where rows are from.

Steps in which the batch stays as it is are taken as one run, so an engine has about two events a row, however long
outputs are.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterator

from benchmarks.fleet.costs import StepCost
from benchmarks.fleet.rows import Rows
from millrace.model_manager.wire.config import ModelConfig

MAX_NUM_SEQS = ModelConfig().max_num_seqs
MAX_NUM_BATCHED_TOKENS = ModelConfig().max_num_batched_tokens
KEPT_PREFIXES = 16
"""System prompts whose keys and values a machine keeps, the latest used."""


class Engine:
    """Batches continuously, or one batch after another: then the next begins when the longest row has ended."""

    def __init__(self, rows: Rows, cost: StepCost, slowness: float = 1.0, *, static: bool = False) -> None:
        self._rows = rows
        self._cost = cost
        self._slowness = slowness
        self._static = static
        self.waiting: deque[int] = deque()
        self._prompts: deque[list[int]] = deque()
        """[row, tokens of its prompt that are not computed], in the order in which they are."""
        self._running: list[tuple[int, int]] = []
        """(The step after which it ends, row): a heap."""
        self._last = 0
        """The step after which all that run have ended."""
        self._prefixes: OrderedDict[int, None] = OrderedDict()
        self.prefix_tokens = 0
        """Tokens of system prompts that were computed."""
        self._step = 0
        self._steps = 0
        self._step_s = 0.0
        self._began = 0.0

    @property
    def held(self) -> int:
        """Rows that wait here or run."""
        return len(self.waiting) + len(self._prompts) + len(self._running)

    @property
    def idle(self) -> bool:
        return not (self._prompts or self._running)

    def launch(self, now: float) -> float | None:
        """Begin the next run of steps; returns when it ends, or None if there is nothing to do."""
        if self.waiting and (self.idle or not self._static):
            self._admit()
        if self._prompts:
            self._compute_prompts()
        elif self._running:
            until = self._last if self._static else self._running[0][0]
            self._set_run(until - self._step, len(self._running), 0)
        else:
            return None
        self._began = now
        return now + self._steps * self._step_s

    def land(self) -> list[int]:
        """End the run; returns the rows whose answers are complete."""
        self._step += self._steps
        if self._static and (self._prompts or self._step < self._last):
            return []
        running, ended = self._running, []
        while running and running[0][0] <= self._step:
            ended.append(heapq.heappop(running)[1])
        return ended

    def interrupt(self, now: float) -> float | None:
        """A row came during a run: end it with the step that is being computed. Returns when; None: as it was."""
        if self._static or self._steps == 1:
            return None
        steps = max(math.ceil((now - self._began) / self._step_s), 1)
        if steps >= self._steps:
            return None
        self._steps = steps
        return self._began + steps * self._step_s

    def computed(self, now: float) -> Iterator[tuple[int, int]]:
        """(row, tokens of it that are computed) for all rows here that have no answer yet."""
        step = self._step + (min(int((now - self._began) / self._step_s), self._steps) if self._step_s else 0)
        for end, row in self._running:
            yield row, self._rows.tokens(row) - max(end - step, 0)
        for row, left in self._prompts:
            yield row, max(self._rows.prompts[row] - left, 0)
        for row in self.waiting:
            yield row, 0

    def _admit(self) -> None:
        room = MAX_NUM_SEQS - len(self._running) - len(self._prompts)
        batch = [self.waiting.popleft() for _ in range(min(room, len(self.waiting)))]
        padded = max((self._rows.prompts[row] for row in batch), default=0) if self._static else 0
        for row in batch:
            self._prompts.append([row, max(self._rows.prompts[row], padded) + self._missing_prefix(row)])

    def _missing_prefix(self, row: int) -> int:
        """Tokens of the row's system prompt that this machine has not got; it has them from now on."""
        if self._rows.prefixes is None:
            return 0
        prefix, kept = self._rows.prefixes[row], self._prefixes
        if prefix in kept:
            kept.move_to_end(prefix)
            return 0
        kept[prefix] = None
        if len(kept) > KEPT_PREFIXES:
            kept.popitem(last=False)
        self.prefix_tokens += self._rows.prefix_tokens
        return self._rows.prefix_tokens

    def _compute_prompts(self) -> None:
        """One step: a token for each that runs, the rest of its budget for prompts; what is complete runs from here."""
        budget = MAX_NUM_BATCHED_TOKENS - len(self._running)
        computed = 0
        while self._prompts and budget > 0:
            row, left = self._prompts[0]
            now = min(left, budget)
            budget -= now
            computed += now
            if now == left:
                computed -= 1  # its last token gives a row
                self._prompts.popleft()
                end = self._step + self._rows.outputs[row]
                self._last = max(self._last, end)
                heapq.heappush(self._running, (end, row))
            else:
                self._prompts[0][1] = left - now
        self._set_run(1, len(self._running), computed)

    def _set_run(self, steps: int, rows: int, prompt_tokens: int) -> None:
        cost = self._cost
        self._steps = steps
        self._step_s = (cost.base + cost.per_row * rows + cost.per_prompt_token * prompt_tokens) * self._slowness

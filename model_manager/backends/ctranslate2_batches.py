"""Batches for CTranslate2: requests of like length with equal parameters, run by threads of their own.

A batch takes no request until it ends, but each request leaves it with its own last token, and the batch shrinks.
Knows the generator; not how a model is loaded.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ..engine.scheduling.sequence import Sequence
from ..wire.errors import InvalidRequest, one_line
from ..wire.sampling import SamplingParams
from .hosted import Event
from .single_floats import above_zero, cut, is_sampled

_WITHIN = 0.02
"""Seconds that `poll` waits for tokens before it looks again whether a batch runs."""
_SILENCE = 300.0
"""Seconds without a token after which a batch may hang: prompts are computed token by token beyond the shortest one."""
_PAUSE, _LONGEST_WAIT = 0.05, 0.3
"""Seconds: a batch that has room begins once no request has come for so long, or after so long in all."""
_ENGINES_FAULT = re.compile("out of memory|bad_alloc|CUDA|cuBLAS|cuDNN", re.IGNORECASE)
"""What an error says that is the engine's or the device's, and no request's."""


@dataclass(frozen=True)
class _BatchParameters:
    """Parameters that are a batch's, not a request's."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    min_tokens: int
    ignore_eos: bool


@dataclass
class _Generation:
    """A request that waits or runs."""

    name: str
    tokens: list[str]
    most: int
    group: _BatchParameters
    count: int = 0
    over: bool = False
    """It has its last token."""
    cancelled: bool = False
    """None of its events is told any more, not even to a request that has its name after it."""


_Told = list[tuple[_Generation, Event]]


@dataclass
class _Steps:
    """Gathers the events of a step of a batch: each wakes the loop once, which then holds up the generating thread."""

    events: queue.SimpleQueue[_Told | Exception]
    step: int = 0
    told: _Told = field(default_factory=list)

    def add(self, step: int, asked: _Generation, event: Event) -> None:
        """An event of that step; all events of the step before are there now."""
        if step != self.step:
            self.tell()
            self.step = step
        self.told.append((asked, event))

    def tell(self) -> None:
        """Hand over what is gathered."""
        if self.told:
            self.events.put(self.told)
            self.told = []


@dataclass
class BatchedGenerator:
    """Its generator as a Library. Threads of its own run the batches; what they generate comes through a queue."""

    generator: Any
    vocabulary: list[str]
    batch_size: int
    eos: list[int]
    at_once: int = 1
    """Batches that run at once, each on a replica of the generator."""
    events: queue.SimpleQueue[_Told | Exception] = field(default_factory=queue.SimpleQueue)
    """A batch's events, a step at a time. An exception is the engine's own: it ends the process."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: OrderedDict[str, _Generation] = field(default_factory=OrderedDict)
    running: dict[str, _Generation] = field(default_factory=dict)
    idle: int = 0
    """Threads that run no batch."""
    last_came: float = 0.0
    """When the last request came, on the clock of `time.monotonic`."""
    silence: float = _SILENCE
    """Seconds that a batch may run and tell nothing before `poll` waits for it."""
    last_told: float = 0.0
    """When a batch last began or told anything, or none ran."""

    def __post_init__(self) -> None:
        self.idle = self.at_once
        for _ in range(self.at_once):
            threading.Thread(target=self._run, name="ctranslate2", daemon=True).start()

    def submit(self, sequence: Sequence, params: SamplingParams) -> None:
        made = sequence.num_output_tokens
        group = _BatchParameters(
            params.temperature if is_sampled(params) else 0.0,
            cut(params.top_k, len(self.vocabulary)),
            above_zero(params.top_p),
            above_zero(params.repetition_penalty),
            max(0, params.min_tokens - made),
            params.ignore_eos,
        )
        tokens = [self.vocabulary[token] for token in sequence.token_ids]
        asked = _Generation(sequence.request_id, tokens, sequence.conditions.max_tokens - made, group)
        with self.changed:
            self.waiting[sequence.request_id] = asked
            self.last_came = time.monotonic()
            self.changed.notify_all()

    def cancel(self, request_id: str) -> None:
        with self.changed:
            self.waiting.pop(request_id, None)
            if (asked := self.running.pop(request_id, None)) is not None:
                asked.cancelled = True

    def poll(self) -> list[Event]:
        told = self._first_told()
        while told and not self.events.empty():
            told.append(self.events.get())
        events: list[Event] = []
        for each in told:
            if isinstance(each, Exception):
                raise each
            events += [event for asked, event in each if not asked.cancelled]
        for event in events:
            if event.finished or event.error is not None:
                self.running.pop(event.request_id, None)
        return events

    def _first_told(self) -> list[_Told | Exception]:
        """Wait without end once a batch has told nothing for `silence`, one of cancelled requests too: the manager
        times the step, and ends an engine whose step lasts too long. Until then requests and deadlines go on: a batch
        tells nothing while it computes its prompts.
        """
        while True:
            try:
                told = [self.events.get(timeout=_WITHIN)]
            except queue.Empty:
                told = []
            now = time.monotonic()
            if told or self.idle == self.at_once:
                self.last_told = now
            if told or now - self.last_told <= self.silence:
                return told

    def num_running(self) -> int:
        return len(self.running)

    # ── the threads ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting)
                self._gather()
                batch = self._next_batch()
                self.idle -= bool(batch)
                self.last_told = time.monotonic()
            try:
                if batch:
                    self._answer(batch)
            except Exception as error:
                self.events.put(error)  # `poll` raises it, and the requests go on in another process
                return
            with self.changed:
                self.idle += bool(batch)

    def _gather(self) -> None:
        """Wait while requests keep coming, and all idle threads have room for them: one that comes a moment late waits
        for a whole batch.
        """
        until = time.monotonic() + _LONGEST_WAIT
        while self.waiting and len(self.waiting) < self.batch_size * self.idle:
            left = min(until, self.last_came + _PAUSE) - time.monotonic()
            if left <= 0:
                return
            self.changed.wait(left)

    def _next_batch(self) -> list[_Generation]:
        """The request that waits longest, and requests of about its length that have the same parameters.

        CTranslate2 takes the prompts of a batch together as far as the shortest one goes, and then token by token: 8
        prompts of 16 to 130 tokens cost ten times as much as 8 of 60.
        """
        if not self.waiting:
            return []
        oldest = next(iter(self.waiting.values()))
        alike = sorted(
            (asked for asked in self.waiting.values() if asked.group == oldest.group),
            key=lambda asked: len(asked.tokens),
        )
        place = next(place for place, asked in enumerate(alike) if asked is oldest)
        size = min(self.batch_size, -(-len(alike) // self.idle))  # the other idle threads get as many
        start = place - place % size
        batch = alike[start : start + size]
        for asked in batch:
            self.running[asked.name] = self.waiting.pop(asked.name)
        return batch

    def _answer(self, batch: list[_Generation]) -> None:
        """Run a batch; where it is refused, each of its requests alone, so that only those which are refused alone
        fail. Raises what is no request's fault: an error of the engine, or one after the first tokens.
        """
        try:
            self._generate(batch)
        except (RuntimeError, ValueError) as error:
            begun = any(asked.count for asked in batch)
            if begun or _ENGINES_FAULT.search(str(error)):
                raise
            if len(batch) == 1:
                refused = InvalidRequest(f"CTranslate2: {one_line(error)}")
                self.events.put([(batch[0], Event(batch[0].name, error=refused))])
                return
            for asked in batch:
                if not asked.cancelled:
                    self._answer([asked])

    def _generate(self, batch: list[_Generation]) -> None:
        group = batch[0].group
        steps = _Steps(self.events)

        def told(step: Any) -> bool:
            """Called with each token; true ends that request."""
            asked: _Generation = batch[step.batch_id]
            if asked.cancelled or asked.over:
                return True
            asked.count += 1
            asked.over = asked.count >= asked.most or (step.token_id in self.eos and not group.ignore_eos)
            steps.add(step.step, asked, Event(asked.name, [step.token_id], finished=asked.over))
            return asked.over

        sampled = group.temperature > 0
        self.generator.generate_batch(
            [asked.tokens for asked in batch],
            max_length=max(asked.most for asked in batch),
            min_length=max(asked.most for asked in batch) if group.ignore_eos else group.min_tokens,
            sampling_topk=group.top_k if sampled else 1,
            sampling_topp=group.top_p,
            sampling_temperature=group.temperature if sampled else 1.0,
            repetition_penalty=group.repetition_penalty,
            end_token=[] if group.ignore_eos else [self.vocabulary[token] for token in self.eos],
            include_prompt_in_result=False,
            callback=told,
        )
        for asked in batch:
            if not asked.over:  # it ended by itself, with a token that it did not tell
                last = [] if group.ignore_eos else self.eos[:1]
                steps.told.append((asked, Event(asked.name, last, finished=True)))
        steps.tell()

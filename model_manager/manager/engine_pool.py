"""The engines of one model: which of them run, how much work each has, and which gets the next request.

Knows how many requests an engine has, how long they are and which share a prompt; not how a request ends.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import nsmallest

import msgspec

from ..wire.config import ModelConfig
from ..wire.engine_messages import ResizeCache
from ..wire.status import EngineStats, ModelInfo
from ..wire.tally import Tally
from .counts import ModelCounts
from .entry import Entry
from .gpus import EngineSetup
from .outbox import Outbox, Start, Stop, ToEngine


class State(enum.StrEnum):
    """The state of an engine, or of a model with all its engines."""

    IDLE = "idle"
    WAITING = "waiting"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


RUNNING = (State.LOADING, State.READY, State.RESTARTING)
"""States in which there is a process, or one is being started."""

AHEAD = 0.25
"""Requests with one prompt stay on one engine until it has this share more work than another engine."""
SHARE = 16
"""After so many more urgent requests went to an engine, the less urgent request that has waited longest is next."""
PART_OF_ROWS = 4
"""An engine without room still takes less urgent requests: a fourth of the requests that it runs at once."""
_STATS = EngineStats.__struct_fields__
_MOST_FAMILIES = 4096
"""Families remembered; an engine's cache hardly holds the prompts of more."""


@dataclass
class EngineSlot:
    """One of the model's engines, numbered `index`. When its process dies, a new process takes the same slot."""

    index: int
    setup: EngineSetup
    state: State = State.IDLE
    info: ModelInfo | None = None
    stats: EngineStats = field(default_factory=EngineStats)
    entries: dict[str, Entry] = field(default_factory=dict)
    """Requests that were sent to the engine and are not finished, by id."""
    priorities: Tally[int] = field(default_factory=Tally)
    """How many of them have each priority."""
    work: int = 0
    """Most tokens that the engine may compute for them, prompts and outputs."""
    deaths_in_row: int = 0
    """Deaths since the last result, or since a request failed as the one that killed the engine."""
    killers_in_row: int = 0
    """Requests that failed since the last result because they had killed engines again and again."""
    cache_bytes: int = 0
    """Bytes of its KV cache, as it last said; 0 if they cannot change."""
    is_resizing: bool = False
    """Whether it was told another size and has not answered."""

    @property
    def max_num_seqs(self) -> int:
        """Most requests that the engine runs at once; 0 until that is known."""
        return self.info.max_num_seqs if self.info is not None else 0

    def put(self, entry: Entry, num_computed: int) -> None:
        """Note that the engine gets a request. `num_computed`: prompt tokens that it computes for other requests anyway
        and can reuse.
        """
        entry.engine = self.index
        entry.work = entry.most_tokens - num_computed
        self.entries[entry.request.request_id] = entry
        self.priorities[entry.request.params.priority] += 1
        self.work += entry.work

    def remove(self, entry: Entry) -> None:
        """Note that the engine no longer has the request."""
        del self.entries[entry.request.request_id]
        self.priorities[entry.request.params.priority] -= 1
        self.work -= entry.work

    def clear(self) -> None:
        """Note that the engine has no requests any more."""
        self.entries, self.priorities, self.work = {}, Tally(), 0

    @property
    def least_urgent(self) -> float:
        """The highest priority number of its requests. After a death none counts: the engine gets no more requests than
        it can run.
        """
        if self.deaths_in_row:
            return -math.inf
        return max(self.priorities, default=-math.inf)

    def check_integrity(self) -> None:
        """Raise AssertionError if the account is wrong (tests)."""
        assert self.work == sum(entry.work for entry in self.entries.values())
        assert self.priorities == Tally(entry.request.params.priority for entry in self.entries.values())
        assert not self.entries or self.state is State.READY, "an engine that is not ready has requests"


class EnginePool:
    """All engines of one model, a slot for each."""

    def __init__(
        self,
        key: str,
        folder: str,
        setups: Sequence[EngineSetup],
        lookahead: float,
        outbox: Outbox,
        counts: ModelCounts,
    ) -> None:
        """`lookahead`: requests an engine gets beyond what it can run at once, as a fraction of it."""
        self.folder = folder
        self._key = key
        self._lookahead = lookahead
        self._outbox = outbox
        self._families = Families()
        self._cache_gib: float | None = None
        self._cache_limit: int | None = None
        """Bytes that the KV cache of each engine may take, if that has changed since they were started."""
        self._num_passed = 0
        """Requests that passed a less urgent one on their way to an engine, since one of these was sent."""
        self._counts = counts
        self.slots = [EngineSlot(index, setup) for index, setup in enumerate(setups)]

    @property
    def state(self) -> State:
        """The model's state: ready as soon as one engine is."""
        states = {slot.state for slot in self.slots}
        order = (State.READY, State.RESTARTING, State.LOADING, State.WAITING, State.FAILED)
        return next((state for state in order if state in states), State.IDLE)

    @property
    def config(self) -> ModelConfig:
        """The settings that its engines run with, or would."""
        return msgspec.structs.replace(self.slots[0].setup.config, num_engines=len(self.slots))

    @property
    def info(self) -> ModelInfo | None:
        """What the model is, once an engine has loaded it or `describe` has said it."""
        return next((slot.info for slot in self.slots if slot.info is not None), None)

    @property
    def capacity(self) -> int:
        """Requests that clients may have outstanding."""
        return sum(self._most(slot) for slot in self.slots)

    @property
    def has_room(self) -> bool:
        """Whether an engine takes another request, however urgent."""
        return any(slot.state is State.READY and self._room(slot) for slot in self.slots)

    def describe(self, info: ModelInfo) -> None:
        """Note what the model is, before an engine has loaded it."""
        for slot in self.slots:
            slot.info = info

    def wait(self) -> None:
        """Note that the engines wait for room in memory."""
        for slot in self.slots:
            slot.state = State.WAITING

    def start(self, cache_gib: float | None = None) -> None:
        """Start every engine with a KV cache of `cache_gib`; None: of the size in its settings, or that it chooses."""
        self._cache_gib, self._cache_limit = cache_gib, None
        for slot in self.slots:
            slot.deaths_in_row = slot.killers_in_row = 0
            slot.state = State.LOADING
            self._start(slot)

    def restart(self, slot: EngineSlot) -> None:
        """Start a new process in the slot of an engine that died."""
        slot.state = State.LOADING if slot.state is State.LOADING else State.RESTARTING
        self._start(slot)

    def _start(self, slot: EngineSlot) -> None:
        self._families.forget(slot.index)
        slot.cache_bytes, slot.is_resizing = 0, False
        config = slot.setup.config
        if self._cache_gib is not None:
            config = msgspec.structs.replace(config, kv_cache_gib=self._cache_gib)
        self._outbox.add(Start(self._key, config, self.folder, slot.index, slot.setup.gpus))

    def ready(self, slot: EngineSlot, info: ModelInfo) -> None:
        """Note that an engine has loaded the model. One that was started again gets the size of the others' caches."""
        slot.state, slot.info, slot.cache_bytes = State.READY, info, info.cache_bytes
        if self._cache_limit is not None and info.cache_bytes > self._cache_limit:
            self._resize(slot, self._cache_limit)

    def resize_caches(self, size: int) -> None:
        """Let the KV cache of each engine take at most `size` bytes; one that loads gets that when it is ready."""
        self._cache_limit = size
        for slot in self.slots:
            if slot.state is State.READY:
                self._resize(slot, size)

    def _resize(self, slot: EngineSlot, size: int) -> None:
        slot.is_resizing = True
        self._outbox.add(ToEngine(self._key, ResizeCache(size), slot.index))

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of the KV caches of all engines; 0 if they cannot change, None while it is not known."""
        running = [slot for slot in self.slots if slot.state in RUNNING]
        if any(slot.state is not State.READY or slot.is_resizing for slot in running):
            return None
        return sum(slot.cache_bytes for slot in running) if all(slot.cache_bytes for slot in running) else 0

    def stop(self, state: State) -> None:
        """End every engine that runs."""
        for slot in self.slots:
            self.end(slot, state)

    def end(self, slot: EngineSlot, state: State) -> None:
        """End one engine, if it runs; IDLE until the model is wanted again, FAILED if it cannot do its work."""
        if slot.state in RUNNING:
            self._outbox.add(Stop(self._key, slot.index))
        slot.state = state
        self.keep_counts(slot)
        if state is State.FAILED:
            slot.info = None

    def keep_counts(self, slot: EngineSlot) -> None:
        """Note that the engine in a slot has ended: the model's counters keep what it had counted."""
        self._counts.engine_ended(slot.stats)
        slot.stats = EngineStats()

    def stats(self) -> EngineStats:
        """Sum over all engines; counters also over the ones that have ended."""
        every = [self._counts.of_ended_engines, *(slot.stats for slot in self.slots)]
        return EngineStats(**{name: sum(getattr(each, name, 0) for each in every) for name in _STATS})

    def assign(self, unsent: dict[str, Entry], suspects: dict[str, Entry]) -> Iterator[tuple[EngineSlot, list[Entry]]]:
        """Assign queued requests to engines that have room: the most urgent first, each to the engine with the least
        work. Gives the slots with their new requests. An engine always has room for a request that is more urgent than
        another one that it has: it preempts that one. After SHARE requests that passed less urgent ones, the longest
        waiting of these is next: it goes to an engine that has room, or that has few of the less urgent.

        A request that shares its prompt with others goes to an engine that has the prompt, unless that engine has too
        much more work than another (`_slot_for`). `suspects` are requests suspected of killing engines (requests.py).
        One engine is kept for them: it takes no other request, and once it is empty it runs them one at a time. The
        other engines go on.
        """
        ready = [slot for slot in self.slots if slot.state is State.READY]
        given: dict[int, list[Entry]] = {}
        if suspects and ready:
            kept = self._kept_for(suspects, ready)
            ready.remove(kept)
            if not kept.entries:
                entry = next(iter(suspects.values()))
                self._put(entry, kept)
                given[kept.index] = [entry]
        rooms = {slot.index: self._room(slot) for slot in ready}
        limits = {slot.index: slot.least_urgent for slot in ready}
        others = [entry for name, entry in unsent.items() if name not in suspects]
        line = deque(_first_in_line(others, sum(rooms.values()), max(limits.values(), default=-math.inf)))
        less_urgent = _LessUrgent(others if line else ())
        while line:
            able = less_urgent.able(ready, rooms) if self._num_passed >= SHARE else []
            due = less_urgent.next() if able else None
            entry = due or line.popleft()
            if entry.engine is not None:
                continue
            priority = entry.request.params.priority
            if due is None:
                able = [slot for slot in ready if rooms[slot.index] or priority < limits[slot.index]]
            if not able:
                break
            slot = self._slot_for(entry, able)
            rooms[slot.index] = max(0, rooms[slot.index] - 1)
            self._put(entry, slot)
            given.setdefault(slot.index, []).append(entry)
            self._num_passed = self._num_passed + 1 if due is None and priority < less_urgent.last else 0
        return ((self.slots[index], entries) for index, entries in given.items())

    def _slot_for(self, entry: Entry, able: list[EngineSlot]) -> EngineSlot:
        """The engine for a request: the least busy one that has the prompt of its family, else the least busy of all.

        An engine with the prompt is passed over if it has too much more work than the least busy one: more than the
        shared prompt tokens that the other would compute again, plus the part AHEAD of its own work.
        """
        least = min(able, key=lambda slot: slot.work)
        known = self._families.engines_of(entry.request.family)
        home = min((slot for slot in able if slot.index in known), key=lambda slot: slot.work, default=least)
        ahead = home.work - least.work
        return home if ahead <= entry.num_shared + AHEAD * home.work else least

    def _put(self, entry: Entry, slot: EngineSlot) -> None:
        family = entry.request.family
        slot.put(entry, entry.num_shared if slot.index in self._families.engines_of(family) else 0)
        self._families.put(family, slot.index)

    def _kept_for(self, suspects: dict[str, Entry], ready: list[EngineSlot]) -> EngineSlot:
        """The engine to keep for suspects: one that has a suspect already, else the one with the fewest requests."""
        running = [slot for slot in ready if any(name in suspects for name in slot.entries)]
        return running[0] if running else min(ready, key=lambda slot: len(slot.entries))

    def _room(self, slot: EngineSlot) -> int:
        """How many more requests the engine takes. After a death, only as many as it can run at once."""
        most = slot.max_num_seqs if slot.deaths_in_row else self._most(slot)
        return max(0, most - len(slot.entries))

    def _most(self, slot: EngineSlot) -> int:
        return math.ceil(slot.max_num_seqs * (1 + self._lookahead))


def _first_in_line(entries: Sequence[Entry], room: int, least_urgent: float) -> list[Entry]:
    """The `room` most urgent requests, and all further ones whose priority number is below `least_urgent`."""
    urgent = sum(entry.request.params.priority < least_urgent for entry in entries)
    return nsmallest(max(room, urgent), entries, key=lambda entry: entry.request.params.priority)


class _LessUrgent:
    """All but the most urgent of some requests, in order of arrival."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        priorities = {entry.request.params.priority for entry in entries}
        self._most_urgent = min(priorities, default=0)
        self.last: float = max(priorities, default=-math.inf)
        """The highest priority number of all."""
        self._entries = (entry for entry in entries if entry.request.params.priority > self._most_urgent)

    def able(self, ready: list[EngineSlot], rooms: dict[int, int]) -> list[EngineSlot]:
        """The engines for the next one: with room, or with less of them than may run beside more urgent ones."""
        return [slot for slot in ready if rooms[slot.index] or self._are_few(slot)]

    def _are_few(self, slot: EngineSlot) -> bool:
        urgent = sum(count for priority, count in slot.priorities.items() if priority <= self._most_urgent)
        return not slot.deaths_in_row and len(slot.entries) - urgent < max(1, slot.max_num_seqs // PART_OF_ROWS)

    def next(self) -> Entry | None:
        """The next one; None if there are no more."""
        return next(self._entries, None)


class Families:
    """The engines that have the shared prompt of each family of requests, by their indexes.

    A family is an affinity group by prefix: the requests that one caller's prompt becomes, such as n answers to one
    prompt or the scores of several continuations. They share the prompt, so it is computed once if they run on the same
    engine. `Request.family` names the group: it is the id of its first request. The family whose last request is the
    longest ago is forgotten first.
    """

    def __init__(self) -> None:
        self._engines: OrderedDict[str, set[int]] = OrderedDict()

    def engines_of(self, family: str) -> Set[int]:
        """Engines that computed the family's prompt, or are going to. None for "", the family of a lone request."""
        return self._engines.get(family, frozenset())

    def put(self, family: str, engine: int) -> None:
        """Note that the engine gets a request of the family."""
        if not family:
            return
        self._engines.setdefault(family, set()).add(engine)
        self._engines.move_to_end(family)
        if len(self._engines) > _MOST_FAMILIES:
            self._engines.popitem(last=False)

    def forget(self, engine: int) -> None:
        """Note that the engine ended: the prompts that it had computed are lost."""
        for engines in self._engines.values():
            engines.discard(engine)

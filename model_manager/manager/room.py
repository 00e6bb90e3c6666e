"""Which models are in memory: one budget for all, and a queue of the models that want to be loaded.

A state machine without IO or clock. It knows how much each model needs and who is in which place; not what a model
does, or how it is loaded and unloaded: `decide` is shown the loaded models, and says who comes and who goes.

A model that wants to be loaded is admitted if it fits with the smallest KV cache worth having. Else the models without
work go, the least recently used first. If that is not enough, models with work get a turn (`_TURN`, or longer if they
take long to load) and then leave: they finish the requests that they have, and come back behind the models that waited.
Nobody overtakes in a place, however small, with one exception: a model that a client is opening goes before those that
are to come back and have waited for less than `_PASSED`. The client can send nothing else meanwhile; the requests of
the others queue, and each load then serves more of them.

What keeps models from thrashing: a loaded model stays until it has served a request, or nobody has sent one for
`_CLAIM` seconds; a model without work for less than `_QUIET` counts as working.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..store.memory import SHARE_OF_GPU, SHARE_OF_MACHINE, MemoryNeed

MACHINE = "memory"
"""The place of engines on a CPU; those on GPUs are in places of the GPUs' names."""

_GIB = 2**30
_QUIET, _CLAIM, _TURN, _TOLD_AFTER, _PASSED = 0.2, 5.0, 10.0, 10.0, 60.0
"""Seconds."""
_TURN_IN_LOADS = 4.0
"""A turn lasts for at least so many times as long as the model took to load."""


@dataclass(frozen=True)
class Wish:
    """A model that wants to be loaded."""

    key: str
    name: str
    need: MemoryNeed
    """Memory that it needs in each of its places."""
    places: tuple[str, ...] = (MACHINE,)


@dataclass(frozen=True)
class Tenant:
    """A loaded model at one moment."""

    works: bool
    """Whether it has requests to finish before it can go."""
    last_used: float = 0.0
    ready_since: float = math.inf
    """Infinite while it loads."""
    load_seconds: float = 0.0
    has_served: bool = True
    """Whether it has answered a request since it was loaded."""
    is_pinned: bool = False

    def can_go(self, now: float) -> bool:
        """Whether it may be unloaded at once."""
        claimed = self.has_served or now - self.ready_since >= _CLAIM
        return not self.works and not self.is_pinned and claimed and now - self.last_used >= _QUIET

    def had_its_turn(self, now: float) -> bool:
        """Whether it must make room though it has work."""
        turn = max(_TURN, _TURN_IN_LOADS * self.load_seconds)
        return self.works and not self.is_pinned and now - self.ready_since >= turn


@dataclass(frozen=True)
class Admit:
    """Load the model, with a KV cache of at most so many bytes; None leaves its size to the engine."""

    key: str
    cache: int | None = None


@dataclass(frozen=True)
class Evict:
    """Unload the model, which has no work, now."""

    key: str


@dataclass(frozen=True)
class Leave:
    """Unload the model as soon as it has finished the requests that it has."""

    key: str


@dataclass(frozen=True)
class Stay:
    """Nobody waits for the place of a model that was to leave: it takes requests again."""

    key: str


@dataclass(frozen=True)
class Refuse:
    """The model can never be loaded."""

    key: str
    why: str


Decision = Admit | Evict | Leave | Stay | Refuse


@dataclass
class _Waiting:
    wish: Wish
    since: float
    is_opening: bool = False
    waits_for: str = ""
    is_told: bool = False

    def goes_first(self, now: float) -> bool:
        """Whether it goes before models that are to come back."""
        return self.is_opening or now - self.since >= _PASSED


@dataclass
class Room:
    """The places, who holds how much of them, and who waits."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each place; a place that is not listed has no bound."""
    is_asked_for: bool = False
    """Whether somebody set the budget. Else one model alone is always admitted: its engine measures what there is."""
    _expected: dict[str, Wish] = field(default_factory=dict)
    """Models in use, loaded or not."""
    _held: dict[str, tuple[Wish, int]] = field(default_factory=dict)
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _leaving: dict[str, None] = field(default_factory=dict)
    """Models that were told to leave, in order."""

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def expect(self, wishes: Iterable[Wish]) -> None:
        """The models that are in use from now on, loaded or not."""
        self._expected = {wish.key: wish for wish in wishes}

    def ask(self, wish: Wish, now: float, *, is_opening: bool = False) -> None:
        """A model wants to be loaded; asking again keeps its place. `is_opening`: a client can send nothing before."""
        assert wish.key not in self._held, "it is loaded"
        self._waiting.setdefault(wish.key, _Waiting(wish, now)).is_opening = is_opening

    def withdraw(self, key: str) -> None:
        """A model no longer wants to be loaded."""
        self._waiting.pop(key, None)

    def release(self, key: str) -> None:
        """A model is not loaded any more."""
        self._held.pop(key, None)
        self._leaving.pop(key, None)

    # ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, tenants: Mapping[str, Tenant], now: float) -> list[Decision]:
        """Who is loaded and who goes, in the order to carry it out in. `tenants` are the loaded models, by key."""
        decisions: list[Decision] = []
        taken: set[str] = set()
        for waiting in sorted(self._waiting.values(), key=lambda each: not each.goes_first(now)):
            if taken.isdisjoint(waiting.wish.places):
                decisions += self._decide(waiting, {key: tenants[key] for key in self._held if key in tenants}, now)
            else:
                waiting.waits_for = "its turn: other models came before it"
            if waiting.wish.key in self._waiting:
                taken.update(waiting.wish.places)
        staying = [key for key in self._leaving if taken.isdisjoint(self._held[key][0].places)]
        for key in staying:
            del self._leaving[key]
        return decisions + [Stay(key) for key in staying]

    def _decide(self, waiting: _Waiting, tenants: Mapping[str, Tenant], now: float) -> list[Decision]:
        wish = waiting.wish
        if why := self._never(waiting, tenants):
            del self._waiting[wish.key]
            return [Refuse(wish.key, why)]
        idle = sorted((key for key in tenants if tenants[key].can_go(now)), key=lambda key: tenants[key].last_used)
        going = self._enough(wish, idle)
        if going is not None:
            for key in going:
                self.release(key)
            return [*map(Evict, going), self._admit(wish)]
        due = sorted(
            (key for key, tenant in tenants.items() if tenant.had_its_turn(now) and key not in self._leaving),
            key=lambda key: tenants[key].ready_since,
        )
        waiting.waits_for = self._lack(wish)
        told = [key for key in self._enough(wish, [*idle, *self._leaving, *due]) or () if key in due]
        self._leaving |= dict.fromkeys(told)
        return [Leave(key) for key in told]

    def _never(self, waiting: _Waiting, tenants: Mapping[str, Tenant]) -> str:
        """Why it cannot be loaded even if all others go; empty if it can. One that is to come back waits for the end of
        what pins others.
        """
        wish, pinned = waiting.wish, []
        if waiting.is_opening:
            pinned = [key for key, tenant in tenants.items() if tenant.is_pinned and self._shares(key, wish)]
        left = self._free(wish, without=[key for key in self._held if key not in pinned])
        if wish.need.least <= left or not (pinned or self.is_asked_for):
            return ""
        beside = f" beside pinned {', '.join(self._held[key][0].name for key in pinned)}" if pinned else ""
        return (
            f"{wish.name} takes about {_gib(wish.need.least)} GiB and {_gib(left)} GiB of memory are for it{beside}: "
            "set memory_gib (--memory_gib) higher, or kv_cache_gib or max_num_seqs lower"
        )

    def _enough(self, wish: Wish, keys: Iterable[str]) -> list[str] | None:
        """The first of the models that make room for it if they go; None if all of them do not."""
        going: list[str] = []
        rest = list(keys)
        while not self._fits(wish, without=going):
            if not rest:
                return None
            if self._shares(key := rest.pop(0), wish):
                going.append(key)
        return going

    def _fits(self, wish: Wish, without: list[str]) -> bool:
        alone = not any(self._shares(key, wish) for key in self._held if key not in without)
        return wish.need.least <= self._free(wish, without) or (alone and not self.is_asked_for)

    def _admit(self, wish: Wish) -> Admit:
        alone = not any(self._shares(key, wish) for key in self._held)
        free, need = self._free(wish), wish.need
        share = SHARE_OF_MACHINE if MACHINE in wish.places else SHARE_OF_GPU
        free -= sum(each.need.least for each in self._others_expected(wish))
        left = need.most_cache if free == math.inf else int(max(0, free - need.fixed) * share)
        cache = max(need.least_cache, min(need.most_cache, left))
        del self._waiting[wish.key]
        self._held[wish.key] = wish, need.fixed + cache
        is_own = cache == need.most_cache or (alone and not self.is_asked_for)
        return Admit(wish.key, None if is_own else cache)

    def _others_expected(self, wish: Wish) -> list[Wish]:
        """Models in use that are not loaded, and want to be in one of its places."""
        others = (each for key, each in self._expected.items() if key != wish.key and key not in self._held)
        return [each for each in others if not set(each.places).isdisjoint(wish.places)]

    def _free(self, wish: Wish, without: Iterable[str] = ()) -> float:
        """Bytes free in the fullest of its places."""
        gone = set(without)
        return min((self._free_in(place, gone) for place in wish.places), default=math.inf)

    def _free_in(self, place: str, gone: Iterable[str] = ()) -> float:
        held = sum(size for key, (wish, size) in self._held.items() if key not in gone and place in wish.places)
        return self.capacity.get(place, math.inf) - held

    def _shares(self, key: str, wish: Wish) -> bool:
        return not set(self._held[key][0].places).isdisjoint(wish.places)

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_waited_for(self) -> bool:
        """Whether any model waits, or is to leave for one that waited."""
        return bool(self._waiting or self._leaving)

    def waits_for(self, key: str) -> str:
        """What a model that waits lacks, and who has it; empty for others."""
        return self._waiting[key].waits_for if key in self._waiting else ""

    def take_long_waits(self, now: float) -> list[str]:
        """Models that have waited for long, each once a wait."""
        waits = [each for each in self._waiting.values() if now - each.since >= _TOLD_AFTER and not each.is_told]
        for each in waits:
            each.is_told = True
        return [each.wish.key for each in waits]

    @property
    def is_crowded(self) -> bool:
        """Whether the models in use, several in a place, do not all fit at once."""
        needs: dict[str, list[int]] = {}
        for wish in self._expected.values():
            for place in wish.places:
                needs.setdefault(place, []).append(wish.need.least)
        return any(len(each) > 1 and sum(each) > self.capacity.get(place, math.inf) for place, each in needs.items())

    def _lack(self, wish: Wish) -> str:
        holders = ", ".join(self._held[key][0].name for key in self._held if self._shares(key, wish))
        return f"{_gib(wish.need.least)} GiB, {_gib(self._free(wish))} GiB are free; in memory: {holders}"

    def check_integrity(self) -> None:
        """Raise AssertionError if the account is wrong (tests)."""
        assert not self._held.keys() & self._waiting.keys(), "a model is loaded and waits"
        assert self._leaving.keys() <= self._held.keys(), "a model is to leave that is not loaded"
        for place, capacity in self.capacity.items():
            holders = [wish for wish, _ in self._held.values() if place in wish.places]
            alone = len(holders) == 1 and not self.is_asked_for
            assert alone or self._free_in(place) >= 0, f"more than {capacity} bytes of {place} are given out"


def _gib(size: float) -> str:
    return f"{max(0.0, size) / _GIB:.2f}".rstrip("0").rstrip(".")

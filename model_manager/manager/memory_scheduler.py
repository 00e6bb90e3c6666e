"""Decides which models are in memory: one budget for all, and a queue of the models that want to be loaded.

A state machine without IO or clock. It knows how much each model needs and who is in which place; not what a model
does, or how it is loaded and unloaded: `decide` is shown the loaded models, and says who comes and who goes.

A model that wants to be loaded is admitted if it fits with the smallest KV cache worth having. Else the models that
nobody uses go, the least recently used first. If that is not enough, the KV caches of the others are cut to their fair
share, those of pinned models too, and the newcomer gets its own. If all that is not enough, the models without work go.
If that is not enough either, models with work get a turn (`_TURN`, or longer if they take long to load) and then drain:
they finish the requests that they have, and come back behind the models that waited.

A fair share: every model of a place has equally many bytes above its smallest KV cache worth having. Models in use
that are not loaded count, as many as fit. What a model cannot use is for the others, and a cache that is smaller than
its share keeps its size. A model that fits without a cut is admitted with what is free, at most its share: no row is
preempted for it. No cache grows above the size that its model was admitted with, so a newcomer waits until all caches
that shrink beside it have done so, even if it would fit before.

KV caches that were cut grow again by equal shares, up to the sizes that they were admitted with, when nobody has waited
for their place for `_QUIET_PLACE` seconds and all models in use are loaded or could be.

Nobody overtakes in a place, however small, with one exception: a model that a client is opening goes before models
that are to come back and have waited for less than `_PASSED`. The client can send nothing else meanwhile. Requests to
the other models queue, and each load then serves more of them.

A turn is longer, by as much as a model's jobs weigh more than the jobs of the model with the smallest
share (`ModelUse.share`) among all models that work or wait for one of its places, but at most _LONGEST times as long.

A model that is to come back, and for which pinned models leave no room, waits until they go. Nobody waits behind it.

What keeps models from thrashing: a loaded model stays until it has served a request, or nobody has sent one for
`_CLAIM` seconds; a model without work for less than `_QUIET` counts as working, unless it drains.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..store.memory import SHARE_OF_GPU, SHARE_OF_MACHINE, MemoryNeed
from .memory_account import MACHINE, Holding, LoadRequest, MemoryAccount, equal_excess

_GIB = 2**30
_QUIET, _CLAIM, _TURN, _TOLD_AFTER, _PASSED = 0.2, 5.0, 10.0, 10.0, 60.0
"""Seconds."""
_LONGEST = 10.0
"""A turn is at most so many times as long for a large share: who waits may have to wait for that long."""
_TURN_IN_LOADS = 4.0
"""A turn lasts for at least so many times as long as the model took to load."""
_QUIET_PLACE = 30.0
"""Seconds that nobody has waited for a place before KV caches in it grow again."""
_WORTH = 4
"""KV caches grow only if one part in so many of what one of them lacks is free."""


@dataclass(frozen=True)
class ModelUse:
    """How a loaded model is used at one moment."""

    works: bool
    """Whether it has requests to finish before it can go."""
    last_used: float = 0.0
    ready_since: float = math.inf
    """Infinite while it loads."""
    load_seconds: float = 0.0
    has_served: bool = True
    """Whether it has answered a request since it was loaded."""
    is_pinned: bool = False
    share: float = 1.0
    """What its jobs weigh; a job's weight is divided among the models that it has requests for."""
    can_shrink: bool | None = False
    """Whether its KV cache can change its size; None while that is not known, since it loads or changes it."""

    def can_go(self, now: float, *, drains: bool) -> bool:
        """Whether it may be unloaded at once. `drains`: it had its turn, and later requests do not hold it."""
        claimed = self.has_served or now - self.ready_since >= _CLAIM
        is_quiet = claimed and now - self.last_used >= _QUIET
        return not self.works and not self.is_pinned and (drains or is_quiet)

    def had_its_turn(self, now: float, least_share: float) -> bool:
        """Whether it must make room though it has work. `least_share`: of all models that work or wait for one of its
        places.
        """
        turn = max(_TURN, _TURN_IN_LOADS * self.load_seconds) * min(_LONGEST, max(1.0, self.share / least_share))
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
class ResizeCache:
    """Let the KV caches of the model take at most so many bytes."""

    key: str
    cache: int


@dataclass(frozen=True)
class Drain:
    """Unload the model as soon as it has finished the requests that it has."""

    key: str


@dataclass(frozen=True)
class EndDrain:
    """The model need not drain any more: it takes requests again."""

    key: str


@dataclass(frozen=True)
class Refuse:
    """The model can never be loaded."""

    key: str
    why: str


Decision = Admit | Evict | ResizeCache | Drain | EndDrain | Refuse


@dataclass
class _Waiting:
    request: LoadRequest
    since: float
    is_opening: bool = False
    share: float = 1.0
    waits_for: str = ""
    is_told: bool = False

    def goes_first(self, now: float) -> bool:
        """Whether it goes before models that are to come back."""
        return self.is_opening or now - self.since >= _PASSED


@dataclass
class MemoryScheduler:
    """The places, who holds how much of them, and who waits."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each place; a place that is not listed has no bound."""
    is_limited: bool = False
    """Whether somebody set the budget. Else one model alone is always admitted: its engine measures what there is,
    unless another model in use could be loaded beside it.
    """
    _expected: dict[str, LoadRequest] = field(default_factory=dict)
    """Models in use, loaded or not."""
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _draining: dict[str, None] = field(default_factory=dict)
    """Models that drain, in the order in which they were told."""

    def __post_init__(self) -> None:
        self._account = MemoryAccount(self.capacity)
        self._held = self._account.held

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def expect(self, requests: Iterable[LoadRequest]) -> None:
        """The models that are in use from now on, loaded or not."""
        self._expected = {request.key: request for request in requests}

    def ask(self, request: LoadRequest, now: float, *, is_opening: bool = False, share: float = 1.0) -> None:
        """A model wants to be loaded; asking again keeps its place. `is_opening`: a client can send nothing before;
        `share`: see ModelUse.
        """
        assert request.key not in self._held, "it is loaded"
        waiting = self._waiting.setdefault(request.key, _Waiting(request, now))
        waiting.request, waiting.is_opening, waiting.share = request, is_opening, share

    def withdraw(self, key: str) -> None:
        """A model no longer wants to be loaded."""
        self._waiting.pop(key, None)

    def release(self, key: str) -> None:
        """A model is not loaded any more."""
        self._held.pop(key, None)
        self._draining.pop(key, None)

    def resized(self, key: str, cache: int) -> None:
        """The engines of a loaded model say what its KV cache takes in each of its places, and that it can change."""
        self._held[key].resized(cache)

    # ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, loaded: Mapping[str, ModelUse], now: float) -> list[Decision]:
        """Who is loaded and who goes, in the order to carry it out in. `loaded` are the loaded models, by key."""
        decisions: list[Decision] = []
        taken: set[str] = set()
        for waiting in sorted(self._waiting.values(), key=lambda each: not each.goes_first(now)):
            if taken.isdisjoint(waiting.request.places):
                decisions += self._decide_one(waiting, {key: loaded[key] for key in self._held if key in loaded}, now)
            else:
                waiting.waits_for = "its turn: other models came before it"
            if waiting.request.key in self._waiting:
                for key in self._account.beside(waiting.request):
                    self._held[key].quiet_since = now
                if not self._is_kept_out(waiting.request, loaded):
                    taken.update(waiting.request.places)
        no_longer_needed = [key for key in self._draining if taken.isdisjoint(self._held[key].request.places)]
        for key in no_longer_needed:
            del self._draining[key]
        return [*decisions, *self._grow(loaded, now), *map(EndDrain, no_longer_needed)]

    def _decide_one(self, waiting: _Waiting, loaded: Mapping[str, ModelUse], now: float) -> list[Decision]:
        request = waiting.request
        if why := self._never(request, loaded, self._pinned(request, loaded) if waiting.is_opening else ()):
            del self._waiting[request.key]
            return [Refuse(request.key, why)]
        can_go = (key for key in loaded if loaded[key].can_go(now, drains=key in self._draining))
        idle = sorted(can_go, key=lambda key: loaded[key].last_used)
        unused = [key for key in idle if key not in self._expected]
        able = self._able_to_shrink(loaded)
        going = self._enough(request, unused)
        if going is None and self._enough(request, unused, able) is None:
            going = self._enough(request, idle)
        shrinking = [key for key in self._account.beside(request) if key in able and self._held[key].is_shrinking]
        if going is not None and shrinking:
            waiting.waits_for = self._lack(request)
            return []
        if going is not None:
            for key in going:
                self.release(key)
            return [*map(Evict, going), self._admit(request, able)]
        going = self._enough(request, unused, able) or self._enough(request, idle, able)
        if going is not None:
            resizes = self._cut(request, going, loaded)
            waiting.waits_for = self._lack(request)
            return resizes
        due = sorted(
            (key for key in loaded if self._is_due(key, loaded, now) and key not in self._draining),
            key=lambda key: loaded[key].ready_since,
        )
        waiting.waits_for = self._lack(request)
        told = [key for key in self._enough(request, [*idle, *self._draining, *due], able) or () if key in due]
        self._draining |= dict.fromkeys(told)
        return [Drain(key) for key in told]

    def _able_to_shrink(self, loaded: Mapping[str, ModelUse]) -> list[str]:
        """Models whose KV caches can be cut, or may turn out so."""
        return [key for key in self._held if key in loaded and loaded[key].can_shrink is not False]

    def _cut(self, request: LoadRequest, going: list[str], loaded: Mapping[str, ModelUse]) -> list[Decision]:
        """Cut the KV caches of others to their fair share, so that it fits with its own once `going` have gone too.
        What others know of their caches only later is waited for.
        """
        level = self._fair_excess(request, self._able_to_shrink(loaded), going)
        cut: list[Decision] = []
        for key in self._account.beside(request, going):
            held, use = self._held[key], loaded.get(key)
            if use and use.can_shrink and held.target is None and held.excess > level:
                held.target = held.cache - (held.excess - level)
                cut.append(ResizeCache(key, held.target))
        return cut

    def _fair_excess(self, request: LoadRequest, able: Collection[str], going: Collection[str] = ()) -> int:
        """Bytes above the smallest KV cache for each model in its places, once it is loaded and `going` have gone: for
        those that are `able` to shrink, and those to come.
        """
        room = self._account.free(request, going, cut=able) - request.need.least
        to_come = self._to_come(request, room)
        most = [self._held[key].excess for key in self._account.beside(request, going) if key in able]
        most += [each.most_excess for each in (request.need, *to_come)]
        return equal_excess(room - sum(each.least for each in to_come), [(0, each) for each in most])

    def _grow(self, loaded: Mapping[str, ModelUse], now: float) -> list[Decision]:
        """KV caches that were cut take equal shares of what is free, if nobody else has use for it."""
        able = [
            held
            for key, held in self._held.items()
            if held.missing and held.target is None and now - held.quiet_since >= _QUIET_PLACE
            if key in loaded and loaded[key].can_shrink
        ]
        grown: list[Decision] = []
        for held, more in [(held, self._growth(held, able)) for held in able]:
            if more:
                held.target = held.cache + more
                grown.append(ResizeCache(held.request.key, held.target))
        return grown

    def _growth(self, held: Holding, able: list[Holding]) -> int:
        """Bytes by which a KV cache grows beside the others that are `able` to."""
        to_come = self._to_come(held.request, math.inf)
        room = self._account.free_to_come(held.request) - sum(each.least for each in to_come)
        room = max(0.0, room) * _share(held.request)
        beside = [each for each in able if each.request.shares(held.request)]
        if room * _WORTH < min(each.missing for each in beside):
            return 0
        bounds = [(each.excess, each.excess + each.missing) for each in beside]
        bounds += [(0, each.most_excess) for each in to_come]
        level = equal_excess(room + sum(each.excess for each in beside), bounds)
        return min(held.missing, max(0, level - held.excess))

    def _is_due(self, key: str, loaded: Mapping[str, ModelUse], now: float) -> bool:
        """Whether a loaded model has had its turn."""
        uses = [(loaded[other].share, self._held[other].request) for other in loaded if loaded[other].works]
        uses += [(each.share, each.request) for each in self._waiting.values()]
        least = min(
            (share for share, request in uses if self._held[key].request.shares(request)), default=loaded[key].share
        )
        return loaded[key].had_its_turn(now, least)

    def why_never(
        self, request: LoadRequest, loaded: Mapping[str, ModelUse], stay: Collection[str] | None = None
    ) -> str:
        """Why a model can never be loaded while those of the pinned models stay that `stay` has, by default all; empty
        if it can. `loaded`: see decide.
        """
        pinned = self._pinned(request, loaded)
        return self._never(request, loaded, pinned if stay is None else [key for key in pinned if key in stay])

    def _never(self, request: LoadRequest, loaded: Mapping[str, ModelUse], pinned: Sequence[str]) -> str:
        """Why it cannot be loaded even if all others go but the `pinned` ones; empty if it can. For one that is to come
        back these are none: it waits for the end of all pins.
        """
        left = self._free_beside(pinned, request, loaded)
        if request.need.least <= left or not (pinned or self.is_limited):
            return ""
        beside = f" beside pinned {', '.join(self._held[key].request.name for key in pinned)}" if pinned else ""
        needs = f"{request.name} takes about {_gib(request.need.least)} GiB"
        return (
            f"{needs} and {_gib(left)} GiB of memory are for it{beside}: "
            "set memory_gib (--memory_gib) higher, or kv_cache_gib or max_num_seqs lower"
        )

    def _is_kept_out(self, request: LoadRequest, loaded: Mapping[str, ModelUse]) -> bool:
        """Whether pinned models leave no room for it, whoever else goes. Others need not wait behind it."""
        pinned = self._pinned(request, loaded)
        return bool(pinned) and request.need.least > self._free_beside(pinned, request, loaded)

    def _pinned(self, request: LoadRequest, loaded: Mapping[str, ModelUse]) -> list[str]:
        return [key for key in self._account.beside(request) if key in loaded and loaded[key].is_pinned]

    def _free_beside(self, stay: Sequence[str], request: LoadRequest, loaded: Mapping[str, ModelUse]) -> float:
        others = [key for key in self._held if key not in stay]
        return self._account.free(request, without=others, cut=self._able_to_shrink(loaded))

    def _enough(self, request: LoadRequest, keys: Iterable[str], cut: Collection[str] = ()) -> list[str] | None:
        """The first of the models that make room for it if they go, and the KV caches of others are cut; None if all of
        them do not.
        """
        going: list[str] = []
        rest = list(keys)
        while not self._fits(request, going, cut):
            if not rest:
                return None
            if self._held[key := rest.pop(0)].request.shares(request):
                going.append(key)
        return going

    def _fits(self, request: LoadRequest, without: list[str], cut: Collection[str]) -> bool:
        alone = not self._account.beside(request, without)
        return request.need.least <= self._account.free(request, without, cut) or (alone and not self.is_limited)

    def _admit(self, request: LoadRequest, able: Collection[str]) -> Admit:
        beside = self._account.beside(request)
        free, need = self._account.free(request), request.need
        fair = need.least_cache + self._fair_excess(request, able)
        to_come = self._to_come(request, free - need.least)
        free -= (kept := sum(each.least for each in to_come))
        part = 1.0 if any(self._held[key].missing for key in beside) else _share(request)
        left = need.most_cache if free == math.inf else int(max(0, free - need.fixed) * part)
        cache = max(need.least_cache, min(need.most_cache, left, fair))
        del self._waiting[request.key]
        self._held[request.key] = Holding(request, cache, most_cache=cache, least_cache=need.least_cache)
        is_own = cache == need.most_cache or not (beside or self.is_limited or kept)
        return Admit(request.key, None if is_own else cache)

    def _to_come(self, request: LoadRequest, free: float) -> list[MemoryNeed]:
        """What models in use need that are not loaded, and want to be in one of its places: as many as fit at once into
        the `free` bytes, the smallest first.
        """
        others = (each for key, each in self._expected.items() if key != request.key and key not in self._held)
        to_come: list[MemoryNeed] = []
        for need in sorted((each.need for each in others if each.shares(request)), key=lambda need: need.least):
            free -= need.least
            if free < 0:
                break
            to_come.append(need)
        return to_come

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_waited_for(self) -> bool:
        """Whether any model waits, or drains for one that waited."""
        return bool(self._waiting or self._draining)

    @property
    def has_shrunk(self) -> bool:
        """Whether any loaded model has a smaller KV cache than it was admitted with."""
        return any(each.missing for each in self._held.values())

    def waits_for(self, key: str) -> str:
        """What a model that waits lacks, and who has it; empty for others."""
        return self._waiting[key].waits_for if key in self._waiting else ""

    def take_long_waits(self, now: float) -> list[str]:
        """Models that have waited for long, each once a wait."""
        waits = [each for each in self._waiting.values() if now - each.since >= _TOLD_AFTER and not each.is_told]
        for each in waits:
            each.is_told = True
        return [each.request.key for each in waits]

    @property
    def is_crowded(self) -> bool:
        """Whether the models in use, several in a place, do not all fit at once."""
        needs: dict[str, list[int]] = {}
        for request in self._expected.values():
            for place in request.places:
                needs.setdefault(place, []).append(request.need.least)
        return any(len(each) > 1 and sum(each) > self.capacity.get(place, math.inf) for place, each in needs.items())

    def _lack(self, request: LoadRequest) -> str:
        held = [self._held[key] for key in self._account.beside(request)]
        holders = ", ".join(each.request.name for each in held)
        shrinking = ", ".join(each.request.name for each in held if each.is_shrinking)
        free = _gib(self._account.free(request))
        lack = f"{_gib(request.need.least)} GiB, {free} GiB are free; in memory: {holders}"
        return f"{lack}; the KV cache shrinks of: {shrinking}" if shrinking else lack

    def check_integrity(self) -> None:
        """Raise AssertionError if the account is wrong (tests)."""
        assert not self._held.keys() & self._waiting.keys(), "a model is loaded and waits"
        assert self._draining.keys() <= self._held.keys(), "a model drains that is not loaded"
        self._account.check_integrity(is_limited=self.is_limited)


def _share(request: LoadRequest) -> float:
    """The part of free memory that a KV cache may take."""
    return SHARE_OF_MACHINE if MACHINE in request.places else SHARE_OF_GPU


def _gib(size: float) -> str:
    return f"{max(0.0, size) / _GIB:.2f}".rstrip("0").rstrip(".")

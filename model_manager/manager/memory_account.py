"""Who holds how much of the memory in each place, and how small and large their KV caches may be.

Knows sizes; not who should come or go (memory_scheduler.py), nor how a KV cache changes its size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..store.memory import MemoryNeed

MACHINE = "memory"
"""The place of engines on a CPU; those on GPUs are in places of the GPUs' names."""


@dataclass(frozen=True)
class LoadRequest:
    """A model that wants to be loaded."""

    key: str
    name: str
    need: MemoryNeed
    """Memory that it needs in each of its places."""
    places: tuple[str, ...] = (MACHINE,)

    def shares(self, other: LoadRequest) -> bool:
        """Whether both are in one place."""
        return not set(self.places).isdisjoint(other.places)


@dataclass
class Holding:
    """What a loaded model holds in each of its places, in bytes."""

    request: LoadRequest
    cache: int
    """Its KV cache."""
    most_cache: int
    """The KV cache that it was admitted with."""
    least_cache: int
    """The smallest that it can be cut to."""
    target: int | None = None
    """The KV cache that it was told to have, and does not have yet."""
    quiet_since: float = 0.0
    """When somebody last waited for one of its places."""

    @property
    def size(self) -> int:
        """All that it takes, or may take before it has answered."""
        return self.request.need.fixed + max(self.cache, self.target or 0)

    @property
    def size_to_come(self) -> int:
        """What it takes once its KV cache is as it was told."""
        return self.request.need.fixed + (self.cache if self.target is None else self.target)

    @property
    def least_size(self) -> int:
        """What it takes with the smallest KV cache."""
        return self.request.need.fixed + min(self.cache, self.least_cache)

    @property
    def excess(self) -> int:
        """What its KV cache has above the smallest, once it is as it was told."""
        return max(0, (self.cache if self.target is None else self.target) - self.least_cache)

    @property
    def missing(self) -> int:
        """What its KV cache lacks of the size that it was admitted with; 0 if it was not cut."""
        return self.most_cache - self.cache

    @property
    def is_shrinking(self) -> bool:
        return self.target is not None and self.target < self.cache

    def resized(self, cache: int) -> None:
        """Note the size that its KV cache has, as its engines say. Where they do not go as far as they were told, that
        is as far as they can.
        """
        if self.target is None:
            if self.cache == self.most_cache:
                self.most_cache = min(cache, self.most_cache)
            self.cache = min(cache, self.cache)
        elif self.target < self.cache:
            self.least_cache = max(self.least_cache, cache) if cache > self.target else self.least_cache
            self.cache = min(cache, self.cache)
        else:
            if cache < self.target and (self.target == self.most_cache or cache <= self.cache):
                self.most_cache = cache  # a part of a growth may end at a block's bound below its target
            self.cache = min(cache, self.target)
        self.target = None


@dataclass
class MemoryAccount:
    """The places, and what is held of them."""

    capacity: Mapping[str, int]
    """Bytes of each place; a place that is not listed has no bound."""
    held: dict[str, Holding] = field(default_factory=dict)

    def beside(self, request: LoadRequest, without: Collection[str] = ()) -> list[str]:
        """The loaded models that are in one of its places, but for some."""
        return [key for key, each in self.held.items() if key not in without and each.request.shares(request)]

    def free(self, request: LoadRequest, without: Collection[str] = (), cut: Collection[str] = ()) -> float:
        """Bytes free in the fullest of its places, if some models go and the KV caches of others are cut."""
        sizes = {
            key: each.least_size if key in cut else each.size for key, each in self.held.items() if key not in without
        }
        return self._free(request.places, sizes)

    def free_to_come(self, request: LoadRequest, without: Collection[str] = ()) -> float:
        """Bytes free in the fullest of its places, once all KV caches are as they were told."""
        return self._free(
            request.places, {key: each.size_to_come for key, each in self.held.items() if key not in without}
        )

    def _free(self, places: Iterable[str], sizes: Mapping[str, int]) -> float:
        free = (
            self.capacity.get(place, math.inf)
            - sum(size for key, size in sizes.items() if place in self.held[key].request.places)
            for place in places
        )
        return min(free, default=math.inf)

    def check_integrity(self, *, is_limited: bool) -> None:
        """Raise AssertionError if more is given out than there is. One model alone may have more if nobody set it."""
        for place, capacity in self.capacity.items():
            holders = [each.size for each in self.held.values() if place in each.request.places]
            alone = len(holders) == 1 and not is_limited
            assert alone or sum(holders) <= capacity, f"more than {capacity} bytes of {place} are given out"


def equal_excess(room: float, bounds: Sequence[tuple[int, int]]) -> int:
    """Bytes above the smallest KV cache for each of several models, equal for all. A model does not go below its first
    bound nor above its second; together they take at most `room`.
    """

    def taken(level: int) -> int:
        return sum(min(max(level, least), most) for least, most in bounds)

    low, high = 0, max((most for _, most in bounds), default=0)
    while low < high:  # sizes may be beyond what `bisect` takes
        level = (low + high + 1) // 2
        low, high = (level, high) if taken(level) <= room else (low, level - 1)
    return low

"""A memory of some GiB, models that want to be loaded in it, and how they are used."""

from __future__ import annotations

from millrace.model_manager.manager.memory_account import MACHINE, LoadRequest
from millrace.model_manager.manager.memory_scheduler import MemoryScheduler, ModelUse
from millrace.model_manager.store.memory import MemoryNeed

GIB = 2**30
IDLE = ModelUse(works=False, ready_since=0.0)
WORKS = ModelUse(works=True, ready_since=0.0)
LATER = 1000.0


def request(
    key: str,
    gib: float = 1.0,
    *,
    least_cache: float = 0.0,
    most_cache: float = 0.0,
    places: tuple[str, ...] = (MACHINE,),
) -> LoadRequest:
    return LoadRequest(key, key, MemoryNeed(int(gib * GIB), int(least_cache * GIB), int(most_cache * GIB)), places)


def memory(gib: float = 2.0, *, is_limited: bool = True, **places: float) -> MemoryScheduler:
    sizes = {MACHINE: gib, **places}
    return MemoryScheduler({place: int(size * GIB) for place, size in sizes.items()}, is_limited=is_limited)

"""The loaded LoRA adapters, and the choice of the one to evict: the least recently used that no running sequence has.

Knows sequences and slots; not what an adapter holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from ...wire.errors import InvalidRequest
from ...wire.request import Adapter, Request
from ..interface import AdapterNotRead, AdapterSlots
from .sequence import Sequence


class LoadedAdapters:
    """Slots by the digest of their adapter. An adapter of a running sequence stays in its slot."""

    def __init__(self, slots: AdapterSlots | None) -> None:
        """`slots` is None for a model that takes no adapters."""
        self._slots = slots
        self._free = list(range(slots.num_slots)) if slots else []
        self._loaded: OrderedDict[str, int] = OrderedDict()  # the most recently used last
        self._refused: dict[str, str] = {}
        """What is wrong with contents, by digest."""

    def check(self, request: Request) -> None:
        """Raises InvalidRequest for an adapter if the model takes none."""
        if request.adapter is not None and self._slots is None:
            raise InvalidRequest(f"adapter={request.adapter.name!r}: needs max_loras of 1 or more (--max_loras 1)")

    def load(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> list[tuple[Sequence, InvalidRequest]]:
        """Load adapters of waiting sequences, as far as there are slots; the order of `waiting` decides who comes
        first. From then on a sequence finds its own slot, while its adapter is loaded.

        Returns sequences whose adapters cannot be loaded, and why.
        """
        wanting = [(sequence, sequence.adapter) for sequence in waiting if sequence.adapter is not None]
        if not wanting:
            return []
        kept = {sequence.adapter.digest for sequence in running if sequence.adapter is not None}
        failed = []
        for sequence, adapter in wanting:
            sequence.loaded_adapters = self._loaded
            try:
                self._give_slot(adapter, kept)
            except InvalidRequest as error:
                failed.append((sequence, error))
            else:
                kept |= {adapter.digest} & self._loaded.keys()
        return failed

    def _give_slot(self, adapter: Adapter, kept: set[str]) -> None:
        """Note that the adapter is used; loads it if a slot is free of `kept` adapters."""
        if adapter.digest in self._refused:
            raise InvalidRequest(f"adapter {adapter.name}: {self._refused[adapter.digest]}")
        if adapter.digest in self._loaded:
            self._loaded.move_to_end(adapter.digest)
        elif (slot := self._idle_slot(kept)) >= 0:
            self._load(slot, adapter)

    def _idle_slot(self, kept: set[str]) -> int:
        if self._free:
            return self._free.pop()
        idle = next((digest for digest in self._loaded if digest not in kept), None)
        return -1 if idle is None else self._loaded.pop(idle)

    def _load(self, slot: int, adapter: Adapter) -> None:
        assert self._slots is not None
        try:
            self._slots.load(slot, adapter)
        except InvalidRequest as error:
            self._free.append(slot)
            if not isinstance(error, AdapterNotRead):
                self._refused[adapter.digest] = str(error)
            raise InvalidRequest(f"adapter {adapter.name}: {error}") from None
        self._loaded[adapter.digest] = slot

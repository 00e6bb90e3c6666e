"""Finds the LoRA adapters that requests name. Each is resolved and hashed once, and again when its files have changed.

Knows names and files; not whether an adapter fits a model, which its engine finds out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..store.adapters import find_stamped, stamp
from ..wire.conversion import shown
from ..wire.errors import InvalidRequest, ModelError
from ..wire.request import LONGEST_NAME, Adapter

_TRY_AGAIN_AFTER = 30.0
"""Seconds for which a name that was not found is not looked for again."""


class Adapters:
    """Adapters by name; thread-safe. A caller waits for the look-up of the adapter that it names, and of no other."""

    def __init__(
        self,
        max_loras: int,
        find: Callable[[str], tuple[Adapter, object]] = find_stamped,
        clock: Callable[[], float] = time.monotonic,
        stamp: Callable[[Path], object] = stamp,
    ) -> None:
        """`stamp` of an adapter's folder changes when the adapter has to be found again; it may raise OSError. `find`
        gives an adapter with its stamp from before it was looked at.
        """
        self._max_loras = max_loras
        self._find = find
        self._stamp = stamp
        self._clock = clock
        self._locks: dict[str, threading.Lock] = {}
        """By name: one that takes long, or stands still, holds up no other."""
        self._found: dict[str, tuple[Adapter, object]] = {}
        self._failed: dict[str, tuple[str, float]] = {}

    def of(self, name: str) -> Adapter | None:
        """The adapter of that name; None for an empty one. It may take long: files are read and hashed, or fetched.

        Raises InvalidRequest, which concerns this request alone, and what else `find` raises.
        """
        if not name:
            return None
        if not self._max_loras:
            raise InvalidRequest(f"adapter={shown(name)}: needs max_loras of 1 or more (--max_loras 1)")
        if len(name) > LONGEST_NAME:
            raise InvalidRequest(f"adapter of {len(name)} characters: takes at most {LONGEST_NAME}")
        if (known := self._known(name)) is not None:
            return known
        with self._locks.setdefault(name, threading.Lock()):
            return self._known(name) or self._looked_for(name)

    def _known(self, name: str) -> Adapter | None:
        """The adapter as found before, unless its files have changed since."""
        if name not in self._found:
            return None
        adapter, before = self._found[name]
        try:
            return adapter if self._stamp(Path(adapter.folder)) == before else None
        except OSError:
            return None

    def _looked_for(self, name: str) -> Adapter:
        reason, until = self._failed.get(name, ("", -1.0))
        if self._clock() < until:
            raise InvalidRequest(reason)
        try:
            adapter, _ = self._found[name] = self._find(name)
        except (ModelError, OSError, ValueError, RuntimeError) as error:  # the latter of pathlib, for what is no path
            reason = f"adapter {name}: {str(error).removeprefix(f'--model {name}: ')}"
            self._failed[name] = reason, self._clock() + _TRY_AGAIN_AFTER
            raise InvalidRequest(reason) from None
        return adapter

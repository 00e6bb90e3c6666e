"""Columns that look like misspelt parameters: they are passed through, as all further columns are, with a warning.

Told once a job and name in a worker's log, and counted for the job's summary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple

from apache_beam.metrics import Metrics
from apache_beam.utils.shared import Shared

from millrace.model_manager.wire.conversion import nearest
from millrace.model_manager.wire.errors import counted
from millrace.model_manager.wire.sampling import nearest_parameter

from .beam_metrics import NAMESPACE
from .prompt_rows import NESTED_PARAMS

_log = logging.getLogger(__name__)
_COUNTER = "near_miss:"
_MAX_NAMES = 100
_MAX_LENGTH = 64
_NESTED = ("params", "parameters", "generation_config")


class NearMiss(NamedTuple):
    """A column, and the parameter that its name resembles."""

    column: str
    meant: str

    def sentence(self, rows: int | None = None) -> str:
        """The finding as a sentence for a log or a summary."""
        among = "" if rows is None else f" of {counted(rows, 'row')}"
        return (
            f"column {self.column!r}{among} is no parameter and is passed through: is {self.meant} meant? "
            "(--no-row_params: parameters are not taken from rows)"
        )


class NearMisses:
    """Looks at the further columns of rows. Pickled into the pipeline; all copies in a process tell a name once."""

    def __init__(self) -> None:
        self._shared = Shared()
        self._told: _Told | None = None
        self._known: dict[str, NearMiss | None] = {}

    def look(self, columns: Mapping[str, Any]) -> None:
        """Look at a row's columns. Call this on the bundle's own thread, where Beam takes metrics."""
        for name, value in columns.items():
            found = self._of(name) or _nested(name, value)
            if found is not None:
                Metrics.counter(NAMESPACE, f"{_COUNTER}{found.column}:{found.meant}").inc()
                self._told = self._told or self._shared.acquire(_Told)
                if self._told.first(found):
                    _log.warning(found.sentence())

    def _of(self, name: str) -> NearMiss | None:
        if name not in self._known and len(self._known) < _MAX_NAMES:
            meant = nearest_parameter(name) if _is_short(name) else None
            self._known[name] = NearMiss(name, meant) if meant else None
        return self._known.get(name)


class _Told:
    def __init__(self) -> None:
        self._found: set[NearMiss] = set()
        self._lock = Lock()

    def first(self, found: NearMiss) -> bool:
        with self._lock:
            new = found not in self._found
            self._found.add(found)
            return new


def _nested(name: str, value: Any) -> NearMiss | None:
    """Only where it is an object with a parameter, or what resembles one, in it."""
    if not isinstance(value, dict) or not _is_short(name) or not (name in _NESTED or nearest(name, [NESTED_PARAMS])):
        return None
    meant = any(nearest_parameter(inner) for inner in value if _is_short(inner))
    return NearMiss(name, NESTED_PARAMS) if meant else None


def _is_short(name: object) -> bool:
    """Long enough names are prose; in Python a key may be no string at all."""
    return isinstance(name, str) and len(name) <= _MAX_LENGTH


def counted_near_misses(counts: Mapping[str, int]) -> dict[NearMiss, int]:
    """Rows by near miss, from the counters of a finished job."""
    found = {name.removeprefix(_COUNTER): rows for name, rows in counts.items() if name.startswith(_COUNTER)}
    return {NearMiss(*name.rsplit(":", 1)): rows for name, rows in found.items()}

"""Rows that share an id, though ids are to be unique: all of them are answered, and the job's summary tells of them.

prompts ─► the ids that rows came with, by hash ─► counted, a part of all hashes at a time ─► counters

Ids that are the row's place are unique, so they are left out. A runner holds all others until the input ends, so they
travel in packs that are compressed: ids that count up take 4 bytes each. A worker compares one part of 64 at a time.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from millrace.model_manager.wire.errors import counted

from .beam_metrics import NAMESPACE
from .completions import Prompt

_REPEATED, _ANSWERED = "repeated_id:", "answered_id:"
_PARTS = 64
_PACK = 1000
"""Ids of one part that travel together, at most."""
_LONGEST = 64
"""Characters of an id that are told."""


class RepeatedIds(NamedTuple):
    """Rows whose id another row has."""

    rows: int
    first: str
    """One of their ids."""

    def of_input(self) -> str:
        """A sentence about repeated ids in one input."""
        return (
            f"{counted(self.rows, 'row')} had the id of another row, such as {self.first}: each is answered, and the "
            "output does not tell them apart; give rows ids of their own, or none"
        )

    def of_resumed(self) -> str:
        """A sentence about repeated ids in a resumed job."""
        return (
            f"{counted(self.rows, 'row')} had the id of a row that was answered before, such as {self.first}, and "
            "another prompt: each is answered beside the earlier one"
        )


class CountRepeatedIds(beam.PTransform):
    """Prompts of an input that has an end → nothing but counters."""

    def expand(self, prompts: Any) -> Any:
        parts = prompts | "Ids" >> beam.ParDo(_Ids()).with_output_types(tuple[int, bytes])
        return parts | "By hash" >> beam.GroupByKey() | "Count" >> beam.FlatMap(_count)


class _Ids(beam.DoFn):
    """(part, some of the bundle's ids that fall into it)."""

    def start_bundle(self) -> None:
        self._parts: defaultdict[int, list[str]] = defaultdict(list)

    def process(self, prompt: Prompt) -> Sequence[WindowedValue]:
        if prompt.id == prompt.source:
            return ()
        part = zlib.crc32(prompt.id.encode("utf-8", "surrogatepass")) % _PARTS
        ids = self._parts[part]
        ids.append(prompt.id)
        return [_pack(part, self._parts.pop(part))] if len(ids) == _PACK else ()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for part, ids in self._parts.items():
            yield _pack(part, ids)


def _pack(part: int, ids: list[str]) -> WindowedValue:
    window = GlobalWindow()
    packed = zlib.compress(json.dumps(ids).encode(), 1)
    return WindowedValue((part, packed), window.max_timestamp(), [window])


def _count(part: tuple[int, Iterable[bytes]]) -> Iterator[None]:
    seen: set[str] = set()
    rows, first = 0, ""
    for packed in part[1]:
        for identity in json.loads(zlib.decompress(packed)):
            if identity in seen:
                rows, first = rows + 1, first or identity
            seen.add(identity)
    if rows:
        _counter(_REPEATED, first).inc(rows)
    yield from ()


def _counter(kind: str, identity: str) -> Any:
    return Metrics.counter(NAMESPACE, kind + identity[:_LONGEST])


class AnsweredIds:
    """Counts rows of a resumed job that have the id of a completion, and another prompt."""

    def __init__(self) -> None:
        self._first: str | None = None

    def count(self, identity: str) -> None:
        """All under the first id that comes: no runner should hold a counter for each row."""
        self._first = identity if self._first is None else self._first
        _counter(_ANSWERED, self._first).inc()


def repeated_ids(counts: Mapping[str, int]) -> RepeatedIds | None:
    """Rows of the job that share an id, from the counters of a finished job."""
    return _found(counts, _REPEATED)


def answered_ids(counts: Mapping[str, int]) -> RepeatedIds | None:
    """Rows of the job that share an id with rows of an earlier job, from the same counters."""
    return _found(counts, _ANSWERED)


def _found(counts: Mapping[str, int], kind: str) -> RepeatedIds | None:
    found = {name.removeprefix(kind): rows for name, rows in counts.items() if name.startswith(kind)}
    return RepeatedIds(sum(found.values()), min(found)) if found else None

"""Makes files of the rows that an interrupted run left in temporary shards, each row once.

The shards are read twice, so that no row is held: first for the entries of their rows, then for the rows. Where no two
entries are equal, as is usual, the second reading decodes nothing. A shard may grow meanwhile, as its worker may live
on for a moment: what the first reading did not see is left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from ..files.file_systems import create, rename
from ..files.formats import OutputFormat
from ..files.lines import read_lines
from ..files.object_reads import open_file
from .answered_rows import as_entries, in_order
from .completed_rows import completed_entries, completed_entry
from .output_files import OutputFiles
from .output_rows import write_rows
from .shards import FULL_BYTES

_MAX_LINE = 1 << 30
_AT_ONCE = 1000
"""Rows that are looked up together."""


def salvage(
    files: OutputFiles, output_format: OutputFormat, schema: pa.Schema | None = None, known: bytearray | None = None
) -> bytearray:
    """Make files of the complete rows of an interrupted run, and remove its shards; returns the rows' entries.

    `known`: entries of the output's finished shards, if they are read already; they are sorted here.
    """
    shards, found = files.interrupted("completions"), bytearray()
    if shards:
        known = completed_entries(files.current("completions")) if known is None else known
        read, left_out = _read(shards, found)
        label = files.next_label() if files.existing("completions") else ""
        name = partial(files.shard, "completions", [label, "salvaged"], extension=output_format)
        _write(files, _new_rows(_lines(read, left_out), in_order(found), in_order(known)), name, schema)
    files.clear(keep_mark=True)
    return found


def _read(shards: list[str], found: bytearray) -> tuple[dict[str, int], set[tuple[str, int]]]:
    """Add the entries of the shards' rows; returns how many lines each shard has, and the shards and numbers of the
    lines that are no row with a result: the ones that were being written, as a rule.
    """
    read, left_out = dict.fromkeys(shards, 0), set()
    for shard, number, line in _lines(dict.fromkeys(shards), set()):
        read[shard] = number + 1
        entry = completed_entry(line)
        if entry is None:
            left_out.add((shard, number))
        else:
            found += entry
    return read, left_out


def _lines(shards: Mapping[str, int | None], left_out: set[tuple[str, int]]) -> Iterator[tuple[str, int, bytes]]:
    """`shards`: how many lines of each are read; None for all."""
    for shard, count in shards.items():
        with open_file(shard) as stream:
            for number, line in enumerate(islice(read_lines(stream, limit=_MAX_LINE), count)):
                if (shard, number) not in left_out:
                    yield shard, number, line.data


class _New:
    """Which rows are taken: the first of each entry that is not known."""

    def __init__(self, entries: npt.NDArray[np.bytes_], known: npt.NDArray[np.bytes_]) -> None:
        """Both are sorted; rows have one of `entries`."""
        self._entries, self._known = entries, known
        self._taken = np.zeros(len(entries), dtype=bool)
        """By the first of equal entries."""

    def take(self, rows: npt.NDArray[np.bytes_]) -> npt.NDArray[np.intp]:
        """Which of these rows are new, ascending, by their entries."""
        places, firsts = np.unique(np.searchsorted(self._entries, rows), return_index=True)
        at = np.searchsorted(self._known, rows[firsts])
        is_known = at < len(self._known)
        is_known[is_known] = self._known[at[is_known]] == rows[firsts][is_known]
        is_new = ~(is_known | self._taken[places])
        self._taken[places[is_new]] = True
        return np.sort(firsts[is_new])


def _new_rows(
    lines: Iterator[tuple[str, int, bytes]], found: npt.NDArray[np.bytes_], known: npt.NDArray[np.bytes_]
) -> Iterator[bytes]:
    rows = (line for _, _, line in lines)
    if not len(known) and not (found[1:] == found[:-1]).any():
        yield from (row + b"\n" for row in rows)
        return
    new = _New(found, known)
    while batch := list(islice(rows, _AT_ONCE)):
        for number in new.take(as_entries(b"".join(map(_entry, batch)))):
            yield batch[number] + b"\n"


def _entry(line: bytes) -> bytes:
    entry = completed_entry(line)
    assert entry is not None, "lines without a row are left out"
    return entry


def _write(
    files: OutputFiles, rows: Iterator[bytes], name: Callable[[int, int], str], schema: pa.Schema | None
) -> None:
    """`name`: the path of a file, by its number and how many there are."""
    built = []
    for part in _parts(rows):
        built.append(FileSystems.join(files.temporary, f"building-{uuid.uuid4().hex}"))
        with create(built[-1]) as stream:
            write_rows(part, stream, name(0, 1), schema)
    for number, path in enumerate(built):
        rename(path, name(number, len(built)))


def _parts(rows: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
    """The rows of one file after the other; each is to be read before the next."""
    for first in rows:
        yield _part(first, rows)


def _part(first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    size = len(first)
    while size < FULL_BYTES and (row := next(others, None)) is not None:
        size += len(row)
        yield row

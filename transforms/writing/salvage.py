"""Makes files of the rows that an interrupted run left in temporary shards, each row once.

The shards are read twice, so that not all rows are held: first for the entries of their rows, then for the rows. Where
no two entries are equal, as is usual, the second reading decodes nothing. Else it holds two batches, each of 1,000 rows
or 16 MiB. A shard may grow meanwhile, as its worker may live on for a moment: what the first reading did not see is
left out.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, compress

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from millrace.model_manager.wire.errors import ConfigError

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
_AT_ONCE_BYTES = 16 * 2**20
"""Most rows that are looked up together, and their size, but for the last one's."""


def salvage(
    files: OutputFiles, output_format: OutputFormat, schema: pa.Schema | None = None, known: bytearray | None = None
) -> bytearray:
    """Make files of the complete rows of an interrupted run, and remove its shards; returns the rows' entries.

    `known`: entries of the output's finished shards, if they are read already; they are sorted here. Raises ConfigError
    for a row that is whole and cannot be written.
    """
    shards, found = files.interrupted("completions"), bytearray()
    if shards:
        known = completed_entries(files.current("completions")) if known is None else known
        are_rows = _read(shards, found)
        label = files.next_label() if files.existing("completions") else ""
        name = partial(files.shard, "completions", [label, "salvaged"], extension=output_format)
        _write(files, _new_rows(_rows(are_rows), in_order(found), in_order(known)), name, schema)
    files.clear(keep_mark=True)
    return found


def _read(shards: list[str], found: bytearray) -> dict[str, bytearray]:
    """Add the entries of the shards' rows; returns a byte for each line of each shard: 1 if it is a row with a result.

    A line that is none was being written, as a rule. Outputs of RunInference may have one for each failed prompt.
    """
    are_rows = {shard: bytearray() for shard in shards}
    for shard in shards:
        for line in _lines(shard):
            entry = completed_entry(line)
            found += entry or b""
            are_rows[shard].append(entry is not None)
    return are_rows


def _rows(are_rows: dict[str, bytearray]) -> Iterator[bytes]:
    """The shards' rows with results, none of the lines that came since."""
    return chain.from_iterable(compress(_lines(shard), are) for shard, are in are_rows.items())


def _lines(shard: str) -> Iterator[bytes]:
    with open_file(shard) as stream:
        yield from (line.data for line in read_lines(stream, limit=_MAX_LINE))


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


def _new_rows(rows: Iterator[bytes], found: npt.NDArray[np.bytes_], known: npt.NDArray[np.bytes_]) -> Iterator[bytes]:
    if not len(known) and not (found[1:] == found[:-1]).any():
        yield from (row + b"\n" for row in rows)
        return
    new = _New(found, known)
    for batch in _batches(rows):
        for number in new.take(as_entries(b"".join(map(_entry, batch)))):
            yield batch[number] + b"\n"


def _batches(rows: Iterator[bytes]) -> Iterator[list[bytes]]:
    for first in rows:
        batch, size = [first], len(first)
        while len(batch) < _AT_ONCE and size < _AT_ONCE_BYTES and (row := next(rows, None)) is not None:
            batch.append(row)
            size += len(row)
        yield batch


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
        with _damage_told(files), create(built[-1]) as stream:
            write_rows(part, stream, name(0, 1), schema)
    for number, path in enumerate(built):
        rename(path, name(number, len(built)))


@contextlib.contextmanager
def _damage_told(files: OutputFiles) -> Iterator[None]:
    """A row may be JSON and still not fit the output, for example if a disk changed the name of a column."""
    try:
        yield
    except ConfigError:
        raise
    except (msgspec.MsgspecError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(
            f"{files.temporary}: a row that an interrupted job left does not fit the output ({reason}): it is damaged, "
            "or of another type; remove its line from the files in there, or the folder, and it is asked again"
        ) from None


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

"""How much of a row group of Parquet is in memory at once: the largest page of each column, as a page is decoded whole.

The footer has no sizes of pages, and a writer may put 1,024 values of any size into one. Each page begins with a header
that has its size (parquet.thrift's PageHeader in Thrift's compact protocol); so the sizes are known before any memory
is taken. Knows no rows.
"""

from __future__ import annotations

import contextlib
import os
from typing import BinaryIO, NamedTuple

import pyarrow.parquet as pq

_STOP, _BYTE, _DOUBLE, _BINARY, _STRUCT = 0, 3, 7, 8, 12
_BOOLEANS = (1, 2)
_INTEGERS = (4, 5, 6)
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3
_BEYOND = 2**31
"""Bytes; no page, and nothing in a header, has as many."""
USUAL_PAGE = 128 * 2**20
"""Bytes: DuckDB ends pages at 100 MB, other writers at 1 MiB."""
_DEEPEST = 8
"""Structs within structs in a header: it has three."""


class PageSize(NamedTuple):
    """The largest page of a column."""

    column: str
    size: int
    """Bytes, decompressed."""


def counted(size: int) -> int:
    """What a page of so many bytes counts: a writer that ends pages by their size makes none beyond USUAL_PAGE."""
    return size // 4 if size <= USUAL_PAGE else size


def largest_pages(stream: BinaryIO, metadata: pq.FileMetaData, number: int, enough: int) -> tuple[int, PageSize]:
    """What the largest pages of all columns of a row group count together, and the largest one.

    A column counts as if it were one page, which is no less, where the sum is at most `enough` anyway. Raises what a
    reader raises of columns that it cannot open, as encrypted ones.
    """
    _open_columns(stream, metadata, number)
    group = metadata.row_group(number)
    chunks = sorted(map(group.column, range(group.num_columns)), key=_size, reverse=True)
    held = sum(counted(_size(chunk)) for chunk in chunks)
    largest = PageSize("", 0)
    for chunk in chunks:
        if held <= enough:
            break
        page = PageSize(chunk.path_in_schema, _largest_page(stream, chunk))
        held += counted(page.size) - counted(_size(chunk))
        largest = max(largest, page, key=lambda each: each.size)
    return held, largest


class _Opened(Exception):
    """Every column is open, and its first page is asked for."""


class _Unread:
    """A file that cannot be read."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, _size: int = -1) -> bytes:
        raise _Opened


def _open_columns(stream: BinaryIO, metadata: pq.FileMetaData, number: int) -> None:
    """Open each column as its reader does. Of one that a reader refuses no metadata may be asked for: pyarrow ends the
    process then, by an exception in C++.
    """
    file = pq.ParquetFile(_Unread(stream), metadata=metadata, pre_buffer=False, buffer_size=1)
    with contextlib.suppress(_Opened):
        next(file.iter_batches(1, row_groups=[number], use_threads=False), None)


def _size(chunk: pq.ColumnChunkMetaData) -> int:
    return max(int(chunk.total_uncompressed_size), int(chunk.total_compressed_size))


def _largest_page(stream: BinaryIO, chunk: pq.ColumnChunkMetaData) -> int:
    """Bytes of a chunk's largest page. Where a header is damaged only the pages before it count: the reader finds the
    same damage.
    """
    begin = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
    end = begin + chunk.total_compressed_size
    largest = 0
    stream.seek(max(begin, 0))
    while stream.tell() < end:
        try:
            uncompressed, compressed = _page_sizes(stream)
        except ValueError:
            break
        largest = max(largest, uncompressed, compressed)
        stream.seek(compressed, os.SEEK_CUR)
    return largest


def _page_sizes(stream: BinaryIO) -> tuple[int, int]:
    """The sizes in the page header that begins here; the stream is at its end then. ValueError for what is none."""
    sizes = {_UNCOMPRESSED_SIZE: 0, _COMPRESSED_SIZE: 0}
    field = 0
    while (head := _byte(stream)) != _STOP:
        field = field + (head >> 4) if head >> 4 else _integer(stream)
        kind = head & 0x0F
        if field in sizes and kind in _INTEGERS:
            sizes[field] = _integer(stream)
        else:
            _skip(stream, kind)
    uncompressed, compressed = sizes.values()
    if not (0 <= uncompressed < _BEYOND and 0 <= compressed < _BEYOND):
        raise ValueError("a page of no possible size")
    return uncompressed, compressed


def _skip(stream: BinaryIO, kind: int, depth: int = 0) -> None:
    """Go past a field's value."""
    if kind in _INTEGERS:
        _varint(stream)
    elif kind == _STRUCT and depth < _DEEPEST:
        while (head := _byte(stream)) != _STOP:
            if not head >> 4:
                _varint(stream)
            _skip(stream, head & 0x0F, depth + 1)
    elif kind == _BINARY:
        stream.seek(min(_varint(stream), _BEYOND), os.SEEK_CUR)
    elif kind in (_BYTE, _DOUBLE):
        stream.seek(1 if kind == _BYTE else 8, os.SEEK_CUR)
    elif kind not in _BOOLEANS:  # a boolean is its field's kind; lists and maps are in no page header
        raise ValueError("no page header")


def _integer(stream: BinaryIO) -> int:
    zigzag = _varint(stream)
    return (zigzag >> 1) ^ -(zigzag & 1)


def _varint(stream: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(stream)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise ValueError("no page header")


def _byte(stream: BinaryIO) -> int:
    data = stream.read(1)
    if not data:
        raise ValueError("the file ends in a page header")
    return data[0]

"""Opening input files on any Beam file system, decompressed.

The standard library's decompressors and Arrow's stand here, not Beam's: those end quietly where a file was cut off,
these say so. What comes from an object store is complete (object_reads.py), so damage that is found is the file's own.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa
from apache_beam.io.filesystem import CompressedFile, CompressionTypes

from .object_reads import Fingerprint, open_file

_AT_ONCE = 1 << 12
"""Compressed bytes, which may be a thousand times as many: Beam decompresses all of a read."""
_OPENERS: dict[str, Callable[[Any], Any]] = {
    CompressionTypes.UNCOMPRESSED: contextlib.nullcontext,
    CompressionTypes.GZIP: lambda raw: gzip.GzipFile(fileobj=raw),
    CompressionTypes.BZIP2: bz2.BZ2File,
    CompressionTypes.LZMA: lzma.LZMAFile,
    CompressionTypes.ZSTD: lambda raw: pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd"),
}
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError)
"""Arrow has not implemented what a damaged file, or one of a newer writer, says of itself; and names of columns may be
no UTF-8.
"""


@contextlib.contextmanager
def open_input(path: str, fingerprint: Fingerprint | None = None) -> Iterator[BinaryIO]:
    """A readable stream of the decompressed file; seekable where it was not compressed."""
    with open_file(path, fingerprint) as raw, decompressed(raw, path) as stream:
        yield stream


@contextlib.contextmanager
def decompressed(raw: BinaryIO, path: str) -> Iterator[BinaryIO]:
    """The content of a file that is open, by the extension of its path."""
    compression = CompressionTypes.detect_compression_type(path)
    opener = _OPENERS.get(compression, lambda raw: CompressedFile(raw, compression, read_size=_AT_ONCE))
    with opener(raw) as stream:
        yield cast(BinaryIO, stream)


def is_damage(error: Exception) -> bool:
    """Whether a file's content is damaged, and not the connection that it came over (an OSError with a number)."""
    return isinstance(error, _DAMAGE) or (
        isinstance(error, OSError) and type(error) in (OSError, gzip.BadGzipFile) and error.errno is None
    )

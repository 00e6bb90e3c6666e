"""Packed weights in one file: written once while they are packed, mapped by later loads.

    tensors        each at a multiple of 64 bytes, in the order in which they were packed
    index          JSON: what the weights were made of, then name, place, dtype, shape and CRC-32 of each tensor
    end            length and CRC-32 of the index, and a magic number

The end is written last, so a file that was not written to its end is invalid. Knows neither models nor folders.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import msgspec
import torch

from ...wire.decoding import json_decoder

_ALIGNED = 64
_END = struct.Struct("<QI8s")
_MAGIC = b"millrace"
_DTYPES = {str(each): each for each in (torch.uint8, torch.int32, torch.bfloat16, torch.float16, torch.float32)}


class _Place(msgspec.Struct, array_like=True, frozen=True):
    offset: int
    dtype: str
    shape: tuple[int, ...]
    crc32: int

    @property
    def size(self) -> int:
        return _DTYPES[self.dtype].itemsize * torch.Size(self.shape).numel()


class _Index(msgspec.Struct, frozen=True):
    made_of: str
    tensors: dict[str, list[_Place]]


class DamagedFile(Exception):
    """A file of packed weights was damaged after it was written, or is not whole."""


class OtherWeights(Exception):
    """A file's weights were made of something else."""


class WrittenWeights:
    """Writes packed tensors to a file as they are made."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._places: dict[str, list[_Place]] = {}
        self._end = 0

    def put(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Write the tensors of that name; raises OSError."""
        self._places[name] = [self._write(tensor) for tensor in tensors]

    def finish(self, made_of: str) -> None:
        """Write what makes the file whole; raises OSError."""
        index = msgspec.json.encode(_Index(made_of, self._places))
        self._file.write(index + _END.pack(len(index), zlib.crc32(index), _MAGIC))
        self._file.flush()

    def _write(self, tensor: torch.Tensor) -> _Place:
        content = _bytes_of(tensor)
        padding = -self._end % _ALIGNED
        self._file.write(bytes(padding))
        self._file.write(content)
        place = _Place(self._end + padding, str(tensor.dtype), tuple(tensor.shape), zlib.crc32(content))
        self._end += padding + place.size
        return place


class MappedWeights:
    """Packed tensors in a mapped file, whose pages all processes share that map it.

    The mapping is private: what a process writes there would change neither the file nor other processes.
    """

    def __init__(self, file: BinaryIO, made_of: str, num_threads: int) -> None:
        """Reads all of the file, by that many threads.

        Raises DamagedFile, OSError, and OtherWeights if the weights were made of anything but `made_of`.
        """
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            index = _index(mapped)
        except (ValueError, struct.error, msgspec.ValidationError, msgspec.DecodeError) as error:
            raise DamagedFile(str(error)) from None
        if index.made_of != made_of:
            raise OtherWeights
        self.size = len(mapped)
        self._tensors = _checked(torch.frombuffer(mapped, dtype=torch.uint8), index, num_threads)

    def tensors(self, name: str, _make: Callable[[], Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """The tensors of that name."""
        return self._tensors[name]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data


def _index(mapped: mmap.mmap) -> _Index:
    length, crc32, magic = _END.unpack(mapped[-_END.size :])
    index = mapped[-_END.size - length : -_END.size]
    if magic != _MAGIC or zlib.crc32(index) != crc32:
        raise ValueError("its index is not whole")
    return json_decoder(_Index).decode(index)


def _checked(content: torch.Tensor, index: _Index, num_threads: int) -> dict[str, list[torch.Tensor]]:
    def tensor(place: _Place) -> torch.Tensor:
        part = content[place.offset : place.offset + place.size]
        if zlib.crc32(_bytes_of(part)) != place.crc32:
            raise DamagedFile(f"{place.size} bytes at {place.offset} are not what was written")
        return part.view(_DTYPES[place.dtype]).view(place.shape)

    with ThreadPoolExecutor(num_threads) as pool:
        checked = pool.map(lambda places: [tensor(place) for place in places], index.tensors.values())
        return dict(zip(index.tensors, checked, strict=True))

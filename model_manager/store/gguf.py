"""GGUF files: how one is named as a model, and what its header says, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

Reads headers only; knows no engine.
"""

from __future__ import annotations

import glob
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..wire.backends import BACKENDS, Backend
from ..wire.errors import ConfigError, ModelCorrupt

SUFFIX = ".gguf"
_SHARD = re.compile(r"(.*)-[0-9]{5}(-of-[0-9]{5}\.gguf)")
_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Codes of the struct module by the types of values."""
_MOST_KEPT = 1024
"""Entries of an array that are kept; of a longer one, a vocabulary, their number alone."""
_MOST_BYTES = 2**26
"""Most bytes of one string."""
_MOST_ENTRIES = 2**24
"""Most entries of an array, fields or tensors."""


class GgufHeader(NamedTuple):
    """The header of a GGUF file."""

    size: int
    """Bytes before the first tensor."""
    fields: dict[str, Any]
    """Values by their keys; in the place of a long array its length."""
    offsets: list[int]
    """Where each tensor begins in the file, in order."""

    def of_model(self, key: str, default: Any = None) -> Any:
        """A field of the model's architecture: `context_length` is `llama.context_length` of a Llama."""
        return self.fields.get(f"{self.fields.get('general.architecture')}.{key}", default)


def is_gguf(model: str) -> bool:
    """True for the name of a GGUF file: a path, `org/name/file.gguf` of a hub, or `gs://bucket/folder/file.gguf`."""
    return model.endswith(SUFFIX)


def check_files(model: str, backend: Backend) -> None:
    """Raises ConfigError for a model whose name says that the back end does not read its files."""
    if not backend.fetches_files or is_gguf(model) == (backend.files == "gguf"):
        return
    local = [each for each in BACKENDS.values() if each.fetches_files]
    can = ", ".join(each.name for each in local if (each.files == "gguf") == is_gguf(model))
    takes = "a GGUF file (x.gguf)" if backend.files == "gguf" else "weights in safetensors format"
    raise ConfigError(f"model={model!r}: the back end {backend.name} takes {takes}; back ends for this model: {can}")


def file_pattern(name: str) -> str:
    """The pattern of a file's name, and of its other parts: `x-00001-of-00003.gguf` needs all three."""
    parts = _SHARD.fullmatch(name)
    return f"{glob.escape(parts[1])}-{'[0-9]' * 5}{parts[2]}" if parts else glob.escape(name)


def gguf_files(model: str, folder: Path) -> list[Path]:
    """The files in `folder` of the model with that name."""
    return sorted(filter(Path.is_file, folder.glob(file_pattern(model.rsplit("/", 1)[-1]))))


def gguf_bytes(model: str, folder: Path) -> int:
    """Bytes of these files together."""
    return sum(path.stat().st_size for path in gguf_files(model, folder))


def read_gguf(path: Path) -> GgufHeader:
    """The header of a file; raises ModelCorrupt for one that is damaged, cut, or something else."""
    try:
        with path.open("rb") as file:
            header = _read(file)
    except (struct.error, ValueError, OverflowError, RecursionError) as error:
        raise ModelCorrupt(f"{path.name} is not a whole GGUF file ({error}); fetch it again") from None
    if header.offsets and header.offsets[-1] >= path.stat().st_size:
        raise ModelCorrupt(f"{path.name} ends before its last tensor; fetch it again")
    return header


def _read(file: BinaryIO) -> GgufHeader:
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    (version,) = _numbers(file, "I", 1)
    if version not in (2, 3):
        raise ValueError(f"version {version}; 2 and 3 are read")
    num_tensors, num_fields = _count(file), _count(file)
    fields = {_string(file): _value(file, *_numbers(file, "I", 1)) for _ in range(num_fields)}
    places = [_tensor(file) for _ in range(num_tensors)]
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"alignment {alignment}")
    size = -(-file.tell() // alignment) * alignment
    return GgufHeader(size, fields, sorted(size + place for place in places))


def _tensor(file: BinaryIO) -> int:
    """Where a tensor's values begin, after the header."""
    _string(file)
    (dimensions,) = _numbers(file, "I", 1)
    if dimensions > 8:
        raise ValueError(f"a tensor of {dimensions} dimensions")
    *_, place = struct.unpack(f"<{dimensions}QIQ", file.read(8 * dimensions + 12))
    return int(place)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        (inner,) = _numbers(file, "I", 1)
        return _array(file, inner, _count(file))
    return _numbers(file, _code(kind), 1)[0]


def _array(file: BinaryIO, kind: int, count: int) -> Any:
    if kind in (_STRING, _ARRAY):
        values = [_value(file, kind) for _ in range(count)]
        return values if count <= _MOST_KEPT else count
    return list(_numbers(file, _code(kind), count)) if count <= _MOST_KEPT else _skipped(file, kind, count)


def _skipped(file: BinaryIO, kind: int, count: int) -> int:
    file.seek(count * struct.calcsize(f"<{_code(kind)}"), 1)
    return count


def _string(file: BinaryIO) -> str:
    (length,) = _numbers(file, "Q", 1)
    if length > _MOST_BYTES:
        raise ValueError(f"a string of {length} bytes")
    found = file.read(length)
    if len(found) < length:
        raise ValueError("it ends in a string")
    return found.decode("utf-8", "replace")


def _numbers(file: BinaryIO, code: str, count: int) -> tuple[Any, ...]:
    layout = struct.Struct(f"<{count}{code}")
    return layout.unpack(file.read(layout.size))


def _count(file: BinaryIO) -> int:
    (count,) = _numbers(file, "Q", 1)
    if count > _MOST_ENTRIES:
        raise ValueError(f"a list of {count}")
    return int(count)


def _code(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"a value of type {kind}")
    return _NUMBERS[kind]

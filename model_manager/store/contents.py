"""What a model's folder must hold, wherever it came from. Opens no weights beyond their headers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from model_manager.wire.errors import ModelCorrupt, ModelNotFound, ModelUnsupported

WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "*.safetensors",
    "*.safetensors.index.json",
)
"""Patterns of the files that are fetched: never pickled weights, never code."""

UNWANTED = ("*/*", "consolidated*")
"""Patterns of what is left out of that: other folders, and second copies of the weights in their makers' own layout."""

_INDEX = "model.safetensors.index.json"
_HEADER_LENGTH = struct.Struct("<Q")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5")


def is_wanted(name: str) -> bool:
    """Whether a file of that name, relative to the model's folder, is fetched."""
    matches = any(fnmatchcase(name, pattern) for pattern in WANTED)
    return matches and not any(fnmatchcase(name, pattern) for pattern in UNWANTED)


def check(folder: Path, model: str) -> Path:
    """`folder` itself, if it is complete; raises ModelNotFound, ModelUnsupported or ModelCorrupt, saying what to do."""
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"--model {model}: {folder} has no config.json; name the folder that does")
    _check_weights(folder, model)
    if not (folder / "tokenizer.json").is_file():
        raise ModelUnsupported(
            f"--model {model}: there is no tokenizer.json; load the tokenizer with transformers' AutoTokenizer, and"
            " put the tokenizer.json that its save_pretrained writes beside config.json"
        )
    return folder


def _check_weights(folder: Path, model: str) -> None:
    for shard in _shards(folder, model):
        if not (folder / shard).is_file():
            raise ModelCorrupt(f"--model {model}: {shard} is missing, which {_INDEX} lists")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        others = [path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern)]
        raise ModelUnsupported(
            f"--model {model}: there are no weights in safetensors format{f' (only {others[0]})' if others else ''},"
            " and no other is loaded; convert them with transformers' from_pretrained and save_pretrained"
        )
    for path in weights:
        _check_length(path, model)


def _shards(folder: Path, model: str) -> Iterator[str]:
    """Files that the index of sharded weights names; each must stand in the folder itself."""
    if not (folder / _INDEX).is_file():
        return
    try:
        shards = set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ModelCorrupt(f"--model {model}: {_INDEX} is not an index of weights") from None
    for shard in sorted(shards, key=str):
        if not isinstance(shard, str) or not shard or Path(shard).name != shard:
            raise ModelCorrupt(f"--model {model}: {_INDEX} names {shard!r}, which is no file of this folder")
        yield shard


def _check_length(path: Path, model: str) -> None:
    """A safetensors file says in its header where its last tensor ends, so a truncated one is seen without reading it.

    The format: https://github.com/huggingface/safetensors#format
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_HEADER_LENGTH.size)
        length = _HEADER_LENGTH.unpack(start)[0] if len(start) == _HEADER_LENGTH.size else size
        header = file.read(length) if length <= size - len(start) else b""
    if len(start) + length + _data_length(header) != size:
        raise ModelCorrupt(f"--model {model}: {path.name} is not a whole safetensors file; fetch it again")


def _data_length(header: bytes) -> int:
    """Bytes of tensors that a header announces; for what is no header, a number that fits no file."""
    try:
        tensors: dict[str, Any] = json.loads(header)
        return max((int(t["data_offsets"][1]) for name, t in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError):
        return -(2**64)

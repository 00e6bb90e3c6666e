"""Checks what a model's folder must hold, wherever it came from. Opens no weights beyond their headers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ..wire.backends import BACKENDS
from ..wire.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from .weight_headers import read_header

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

TOKENIZER_FILES = tuple(name for name in WANTED if "safetensors" not in name)
"""What turns text into token ids and back: a model without its weights."""

ENGINE_FILES = tuple(pattern for backend in BACKENDS.values() for pattern in backend.own_files)
"""Patterns of the files of other engines' own formats, such as OpenVINO's."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
"""Files of a LoRA adapter, as peft saves it."""

UNWANTED = ("*/*", "consolidated*")
"""Patterns of files that are not fetched: other folders, and copies of the weights in another layout."""

_MOST_SETTINGS = 2**24
_MOST_LISTS = 2**27
"""Bytes of a file of settings, and of one that lists tokens or weights; they are read whole."""
_LISTS = ("tokenizer*.json", "*.index.json")

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5")


def is_wanted(name: str, wanted: Sequence[str] = WANTED) -> bool:
    """True if a file of that name, relative to the model's folder, is fetched."""
    matches = any(fnmatchcase(name, pattern) for pattern in wanted)
    return matches and not any(fnmatchcase(name, pattern) for pattern in UNWANTED)


def check_sizes(folder: Path, model: str) -> Path:
    """`folder`, if the files of it that are read whole can be; raises ModelCorrupt."""
    for path in folder.iterdir():
        if not any(fnmatchcase(path.name, pattern) for pattern in (*TOKENIZER_FILES, ADAPTER_CONFIG, _INDEX)):
            continue
        most = _MOST_LISTS if any(fnmatchcase(path.name, pattern) for pattern in _LISTS) else _MOST_SETTINGS
        if path.stat().st_size > most:
            raise ModelCorrupt(f"--model {model}: {path.name} has more than {most >> 20} MiB, so it is no such file")
    return folder


def check(folder: Path, model: str, backend: str = "torch") -> Path:
    """`folder`, if it is complete: a checkpoint, or a model in the back end's own format.

    Raises ModelNotFound, ModelUnsupported or ModelCorrupt with what to do.
    """
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"--model {model}: {folder} has no config.json; name the folder that does")
    if is_in_format(folder, backend):
        _check_format(folder, model, backend)
    else:
        _check_weights(folder, model, backend)
    if not (folder / "tokenizer.json").is_file():
        raise ModelUnsupported(
            f"--model {model}: there is no tokenizer.json; load the tokenizer with transformers' AutoTokenizer, and"
            " put the tokenizer.json that its save_pretrained writes beside config.json"
        )
    return folder


def is_in_format(folder: Path, backend: str) -> bool:
    """True if the folder holds a model in the own format of that back end."""
    return any((folder / name).is_file() for name in BACKENDS[backend].own_files[:1])


def _check_format(folder: Path, model: str, backend: str) -> None:
    """Raises ModelCorrupt where a file of the back end's format is missing or empty."""
    for name in BACKENDS[backend].own_files:
        file = folder / name
        if "*" not in name and not (file.is_file() and file.stat().st_size):
            state = "empty" if file.is_file() else "missing"
            raise ModelCorrupt(f"--model {model}: {name} is {state}, a part of {backend}'s format; convert it again")


def _readers(folder: Path) -> list[str]:
    """The back ends that load the folder as it is, by the format of its files."""
    return [name for name in BACKENDS if is_in_format(folder, name)]


def weight_files(folder: Path, name: str = "", backend: str = "torch") -> list[Path]:
    """The safetensors files that a model in `folder` is loaded from, all there; `name` is what errors call the model.

    Raises ModelUnsupported for no weights under a name that is loaded, ModelCorrupt for an index that does not hold.
    """
    name = name or str(folder)
    if (folder / _INDEX).is_file():
        return list(_shards(folder, name))
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    if others := _readers(folder):
        raise ModelUnsupported(f"{name}: is in the format of {others[0]}: --backend {others[0]} loads it as it is")
    others = [path.name for pattern in _OTHER_WEIGHTS for path in sorted(folder.glob(pattern))]
    own = "".join(f", nor {file}" for file in BACKENDS[backend].own_files[:1])
    only = f" (only {others[0]})" if others else ""
    raise ModelUnsupported(
        f"{name}: has no weights in safetensors format, {_WEIGHTS}{own}{only}, and no other format is loaded;"
        " convert them with transformers' from_pretrained and save_pretrained"
    )


def _check_weights(folder: Path, model: str, backend: str) -> None:
    for path in weight_files(folder, f"--model {model}", backend):
        _check_length(path, model)


def check_adapter(folder: Path, name: str) -> Path:
    """`folder`, if it holds a whole LoRA adapter; raises ModelNotFound or ModelCorrupt."""
    for file in ADAPTER_FILES:
        if not (folder / file).is_file():
            raise ModelNotFound(f"--model {name}: {folder} has no {file}, which an adapter consists of")
    _check_length(folder / ADAPTER_WEIGHTS, name)
    return folder


def _shards(folder: Path, name: str) -> Iterator[Path]:
    """Files that the index of sharded weights names; each must stand in the folder itself."""
    try:
        shards = set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ModelCorrupt(f"{name}: {_INDEX} is not an index of weights") from None
    for shard in sorted(shards, key=str):
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelCorrupt(f"{name}: {_INDEX} names {shard!r}, which is no file of this folder with weights")
        if not _is_there(folder / shard):
            raise ModelCorrupt(f"{name}: {shard} is missing, which {_INDEX} lists")
        yield folder / shard


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no file has so long a name
        return False


def _check_length(path: Path, model: str) -> None:
    """A safetensors file's header says where its last tensor ends, so a truncated one is seen without reading it."""
    header = read_header(path)
    try:
        end = max((int(tensor["data_offsets"][1]) for tensor in (header.tensors or {}).values()), default=0)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError):
        end = -1
    if header.tensors is None or len(header.raw) + end != path.stat().st_size:
        raise ModelCorrupt(f"--model {model}: {path.name} is not a whole safetensors file; fetch it again")

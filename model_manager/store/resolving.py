"""Which kind of place a model's name means, and the local folder it ends up in.

Knows the kinds of names; what fetching from each kind takes stands beside it (`hub`, `bucket`).
"""

from __future__ import annotations

import difflib
from pathlib import Path

from model_manager.store.contents import check
from model_manager.wire.config import EMBEDDED_MODEL
from model_manager.wire.errors import ModelNotFound

_EMBEDDED = Path(__file__).with_name("embedded")


def resolve(model: str, revision: str | None = None, *, cache_dir: Path | None = None) -> Path:
    """The local folder of a model: config.json, tokenizer.json and safetensors weights, fetched if they are elsewhere.

    `model` is the embedded model's name, a folder, a hub name (`org/name`, at `revision`) or `gs://bucket/folder`.
    `cache_dir` is where buckets are fetched to; `MILLRACE_CACHE_DIR`, else ~/.cache/millrace, by default.

    Raises ModelNotFound, ModelCorrupt or ModelUnsupported, and ModelError where access is denied.
    """
    if model == EMBEDDED_MODEL:
        return check(_EMBEDDED / EMBEDDED_MODEL, model)
    if model.startswith("gs://"):
        raise NotImplementedError
    if _means_folder(model):
        return check(_folder(model), model)
    raise NotImplementedError


def _means_folder(model: str) -> bool:
    """A path by its looks, or the name of a folder that is here."""
    return model.startswith(("/", ".", "~")) or model.count("/") != 1 or Path(model).is_dir()


def _folder(model: str) -> Path:
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.exists():
        raise ModelNotFound(f"--model {model}: is a file; name the folder that holds config.json")
    raise ModelNotFound(f"--model {model}: no such folder{_near_miss(folder)}")


def _near_miss(folder: Path) -> str:
    """A hint at the name that was probably meant, or nothing."""
    neighbours = [EMBEDDED_MODEL]
    if folder.parent.is_dir():
        neighbours += [child.name for child in folder.parent.iterdir() if child.is_dir()]
    close = difflib.get_close_matches(folder.name, neighbours, n=1)
    return f" (did you mean {close[0]}?)" if close else ""

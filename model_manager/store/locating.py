"""Locates a model's files on this machine, and names their contents: settings as an engine takes them.

A client does this for the manager of its machine; a manager that shares no file system with its clients does it itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig
from ..wire.errors import ModelCorrupt, ModelError
from .contents import TOKENIZER_FILES, is_wanted
from .gguf import check_files
from .resolving import resolve, resolve_source, resolve_tokenizer_source
from .revisions import revision_of
from .sources import HubRepo, LocalPath, ModelSource, source_of

_NOT_TOKENIZERS = ("config.json", "generation_config.json")


def located(config: ModelConfig) -> tuple[ModelConfig, Path]:
    """The settings with the model's revision and local names, and the model's folder, fetched if need be; raises as
    `resolve` does. Where servers have the files, nothing is looked for.
    """
    backend = BACKENDS[config.backend]
    if not backend.fetches_files:
        return config, Path()
    check_files(config.model, backend)
    source = source_of(config.model)
    folder = resolve_source(source, config.revision, backend=config.backend).absolute()
    return _on_this_machine(config, source, folder), folder


def located_tokenizer(config: ModelConfig) -> tuple[ModelConfig, Path]:
    """The settings and the folder of the model's tokenizer alone, for a client whose manager finds the model itself.

    A hub's name gets the commit that was found, so that the manager takes the same one. Raises as `resolve` does.
    """
    source = source_of(config.model)
    try:
        folder = resolve_tokenizer_source(source, config.revision).absolute()
    except ModelError as error:
        needs = "a client of a manager at tcp:// reads the tokenizer by the model's name, and finds none here"
        raise type(error)(f"{error} ({needs})") from None
    revision = revision_of(source, folder) if isinstance(source, HubRepo) else config.revision
    return msgspec.structs.replace(config, revision=revision), folder


def tokenizer_digest(folder: Path) -> str:
    """A hash of the files that make token ids of text, and text of token ids."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if is_wanted(path.name, TOKENIZER_FILES) and path.name not in _NOT_TOKENIZERS and path.is_file():
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def check_tokenizer(config: ModelConfig, folder: Path, digest: str) -> None:
    """Raises ModelCorrupt if a client's tokenizer is not the model's: its token ids would mean other text. `digest` is
    empty from a client that has none.
    """
    if digest and digest != tokenizer_digest(folder):
        raise ModelCorrupt(
            f"--model {config.model}: the tokenizer's files of the client are not the manager's; give both the same,"
            " or name a hub model or a bucket"
        )


def _on_this_machine(config: ModelConfig, source: ModelSource, folder: Path) -> ModelConfig:
    """The settings as the manager takes them: folders are the same from wherever they are named, and equal revisions
    have equal contents.
    """
    config = msgspec.structs.replace(config, revision=revision_of(source, folder))
    if isinstance(source, LocalPath):
        config = msgspec.structs.replace(config, model=str(folder / source.gguf))
    if config.draft_model is not None:
        config = msgspec.structs.replace(config, draft_model=_draft_folder(config.draft_model))
    return config


def _draft_folder(draft_model: str) -> str:
    """The folder of a draft model, as the engine takes it; raises ModelError, saying which of the two models it is."""
    try:
        return str(resolve(draft_model).absolute())
    except ModelError as error:
        raise type(error)(f"draft_model: {error}") from None

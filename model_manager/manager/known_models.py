"""What loads on this machine found of a model, kept in the cache folder: it can be opened without a load.

A file's name is the digest of the model's folder, all its settings, the revision among them, and millrace's version. A
file begins with its checksum. One that is damaged or cannot be read is one that is not there.
"""

from __future__ import annotations

import hashlib
import logging
from importlib.metadata import distributions
from pathlib import Path

import msgspec

from ..store.kept_files import keep_checked, read_checked
from ..wire.config import ModelConfig, cache_folder
from ..wire.decoding import json_decoder
from ..wire.messages import PROTOCOL
from ..wire.status import ModelInfo

_FOLDER = "known-models"
_VERSION = next((each.version for each in distributions(name="beam-millrace")), "")
"""Empty where the sources were not installed."""
_log = logging.getLogger(__name__)


class KnownModels:
    """The models that have been loaded on this machine."""

    def __init__(self) -> None:
        self._written: set[Path] = set()

    def find(self, config: ModelConfig, folder: str) -> ModelInfo | None:
        """What an earlier load of the same contents by the same settings found; None if there is none."""
        content = read_checked(_file_of(config, folder))
        try:
            return None if content is None else json_decoder(ModelInfo).decode(content)
        except msgspec.MsgspecError:
            return None

    def keep(self, config: ModelConfig, folder: str, info: ModelInfo) -> None:
        """Keep what a load found, once a process. It is not kept where the contents have no revision, or where little
        memory cut the model's limits (`is_cut`).
        """
        file = _file_of(config, folder)
        if file in self._written or not config.revision or info.is_cut:
            return
        self._written.add(file)
        try:
            keep_checked(file, msgspec.json.encode(info))
        except OSError as error:
            _log.warning("%s has to be loaded to be opened: %s: %s", config.name, file, error)


def _file_of(config: ModelConfig, folder: str) -> Path:
    identity = msgspec.json.encode([_VERSION, PROTOCOL, config, folder])
    return cache_folder() / _FOLDER / f"{hashlib.sha256(identity).hexdigest()[:32]}.json"

"""The config of a checked model as transformers reads it, kept on disk: a later start does without transformers.

To import transformers and to read a config by its classes takes half a second of a start. Only models that run as one
compiled program need none of its code, so only their configs are kept, once the compiled step has passed its check. A
file begins with its checksum, and lies in the cache folder under the digest of what reading depends on: config.json,
transformers, the engine's code.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...store.kept_files import keep_checked, read_checked
from ...wire.config import cache_folder
from ..cpu.decoder_plan import COMPUTED_ROPE, DecoderPlan, Rope
from .surroundings import surroundings

log = logging.getLogger(__name__)

_FOLDER = "configs"
_ELSEWHERE = {"configuration_files", "attribute_map"}
"""Fields that name other files to read, or other names of fields."""
_PLAIN = (str, int, float, bool, list, dict, type(None))


class PlainConfig:
    """The fields of a transformers config, as attributes, and nothing of its class."""

    architectures: list[str]
    """The served one."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__ |= fields

    def get_text_config(self, decoder: bool = False) -> PlainConfig:  # noqa: ARG002 (transformers' own)
        """Itself: configs of models of several modalities are not kept."""
        return self


class KeptConfig:
    """Where the config of a folder is kept, by what config.json holds as this is made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = _file_of(folder)

    def read(self) -> PlainConfig | None:
        """The config, if it is kept and whole."""
        if (content := read_checked(self._file)) is None:
            return None
        fields = json.loads(content)
        if rope := fields[COMPUTED_ROPE]:
            fields[COMPUTED_ROPE] = Rope(torch.tensor(rope[0]), rope[1])
        return PlainConfig(fields)

    def keep(self, architecture: str, config: Any, plan: DecoderPlan) -> None:
        """Keep the config that the plan was made of; where that fails, the next start reads it again."""
        if isinstance(config, PlainConfig):
            return
        fields: dict[str, Any] = {name: value for name, value in vars(config).items() if isinstance(value, _PLAIN)}
        fields["architectures"] = [architecture]
        fields[COMPUTED_ROPE] = plan.rope and [plan.rope.inverse_frequencies.tolist(), plan.rope.scale]
        try:
            if self._is_self_contained():
                keep_checked(self._file, json.dumps(fields).encode())
        except (OSError, TypeError, ValueError) as error:  # a field may hold what is no JSON
            log.warning("the config of this model is read anew at its next start: %s: %s", self._file, error)

    def _is_self_contained(self) -> bool:
        """Whether config.json is what it was before it was read, and holds all that transformers goes by."""
        content = (self._folder / "config.json").read_bytes()
        return _file_of(self._folder) == self._file and not _ELSEWHERE & json.loads(content).keys()


def _file_of(folder: Path) -> Path:
    content = msgspec.json.encode({"config": "as transformers reads it"} | surroundings(folder))
    return cache_folder() / _FOLDER / f"{hashlib.sha256(content).hexdigest()[:32]}.json"

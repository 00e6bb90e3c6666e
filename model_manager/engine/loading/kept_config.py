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

from ...store.cache_folder import cache_folder
from ..cpu.decoder_plan import DecoderPlan
from .kept_files import forget_oldest, surroundings, write_whole

log = logging.getLogger(__name__)

_FOLDER = "configs"
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


def kept_config(folder: Path) -> PlainConfig | None:
    """The config of a model's folder, if it is kept, and whole."""
    try:
        checksum, _, content = _file(folder).read_bytes().partition(b"\n")
    except OSError:
        return None
    return PlainConfig(json.loads(content)) if checksum == _checksum(content) else None


def keep_config(folder: Path, architecture: str, config: Any, plan: DecoderPlan) -> None:
    """Keep the config that the plan was made of; where that fails, the next start reads it again."""
    if isinstance(config, PlainConfig):
        return
    fields = {name: value for name, value in vars(config).items() if isinstance(value, _PLAIN)}
    fields["architectures"] = [architecture]
    if plan.rope:
        fields["computed_rope"] = [plan.rope.inverse_frequencies.tolist(), plan.rope.scale]
    file = _file(folder)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(fields).encode()
        write_whole(file, _checksum(content) + b"\n" + content)
        forget_oldest(file.parent)
    except (OSError, TypeError, ValueError) as error:  # a field may hold what is no JSON
        log.warning("the config of this model is read anew at its next start: %s: %s", file, error)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _file(folder: Path) -> Path:
    content = msgspec.json.encode({"config": "as transformers reads it"} | surroundings(folder))
    return cache_folder() / _FOLDER / f"{hashlib.sha256(content).hexdigest()[:32]}.json"

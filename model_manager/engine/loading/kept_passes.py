"""Which checks have been passed on this machine, so that a start pays for them once.

A pass is a file in the cache folder, named by the digest of everything that the outcome depends on: the checkpoint's
config and files, the code here, in torch and in transformers, the processor, and the settings that choose how the model
is computed. Only passes are kept: a refusal is found again by each start. What cannot be kept is checked again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numba
import torch
import transformers

from ...store.cache_folder import cache_folder
from .placement import Placement

log = logging.getLogger(__name__)

_FOLDER = "checks"
_MOST_KEPT = 1024
_ENGINE = Path(__file__).parents[1]


class KeptPass:
    """Whether one check of one load has been passed before."""

    def __init__(self, placement: Placement, check: str) -> None:
        """`check` names it."""
        self._content = msgspec.json.encode({"check": check} | _conditions(placement))
        self._file = cache_folder() / _FOLDER / hashlib.sha256(self._content).hexdigest()[:32]
        self._rank = placement.rank

    def is_kept(self) -> bool:
        """Ranks of one model come to the same answer: a check takes all of them."""
        try:
            found = self._file.read_bytes() == self._content
        except OSError:
            found = False
        return found if self._rank is None else bool(self._rank.least(int(found)))

    def keep(self) -> None:
        """Remember that it was passed; whoever does so at the same time writes the same."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _write(self._file, self._content)
            _forget_oldest(self._file.parent)
        except OSError as error:
            log.warning("the checks of this model run again at its next start: %s: %s", self._file, error)


def _conditions(placement: Placement) -> dict[str, Any]:
    checkpoint, config = placement.checkpoint, placement.config
    files = sorted({file for file, _ in checkpoint.parameters.values()})
    device = placement.device
    return {
        "config": hashlib.sha256((checkpoint.folder / "config.json").read_bytes()).hexdigest(),
        "weights": [_identity(file) for file in files],
        "code": _code(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "processor": sorted(name for name, has in torch.cpu.get_capabilities().items() if has is True),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": str(placement.dtype),
        "quantization": config.quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "max_model_len": placement.max_model_len,
        "block_size": config.block_size,
        "steps": [config.max_num_batched_tokens, config.max_num_seqs],
        "numba": numba.__version__,
        "adapters": bool(config.max_loras),
        "tensor_parallel": placement.world,
    }


def _identity(file: Path) -> tuple[str, int, int]:
    """Name, size and time of change: reading all of it would take longer than the checks."""
    status = file.stat()
    return file.name, status.st_size, status.st_mtime_ns


@cache
def _code() -> str:
    """A hash of the engine's sources: a version says nothing while they are being changed."""
    digest = hashlib.sha256()
    for source in sorted(_ENGINE.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _write(file: Path, content: bytes) -> None:
    """All of it or nothing, whoever reads it meanwhile."""
    descriptor, name = tempfile.mkstemp(prefix=".", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
        Path(name).replace(file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _forget_oldest(folder: Path) -> None:
    kept = sorted(_with_times(folder))
    for _, file in kept[:-_MOST_KEPT]:
        file.unlink(missing_ok=True)


def _with_times(folder: Path) -> Iterator[tuple[int, Path]]:
    for file in folder.iterdir():
        try:
            yield file.stat().st_mtime_ns, file
        except FileNotFoundError:
            continue  # somebody else forgot it

"""A record of the checks that have passed on this machine, so that only the first start pays for them.

A pass is a file in the cache folder. Its name is the digest of everything that the outcome depends on: the checkpoint's
config and files, the code here, in torch and in transformers, the processor, and the settings that choose how the model
is computed. Only passes are kept: each start finds a refusal again. A check whose pass cannot be written runs again.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import msgspec
import numba
import torch

from ...store.kept_files import keep
from ...wire.config import cache_folder
from .placement import Placement
from .surroundings import surroundings

log = logging.getLogger(__name__)

_FOLDER = "checks"


class KeptPass:
    """One check of one load, and whether it has passed before."""

    def __init__(self, placement: Placement, check: str) -> None:
        """`check`: the name of the check."""
        self._content = msgspec.json.encode({"check": check} | _conditions(placement))
        self._file = cache_folder() / _FOLDER / hashlib.sha256(self._content).hexdigest()[:32]
        self._rank = placement.rank

    def is_kept(self) -> bool:
        """True if the pass is kept. All ranks of a model get the same answer, since a check needs all of them."""
        try:
            found = self._file.read_bytes() == self._content
        except OSError:
            found = False
        return found if self._rank is None else bool(self._rank.least(int(found)))

    def keep(self) -> None:
        """Remember the pass; another process may write the same at the same time."""
        try:
            keep(self._file, self._content)
        except OSError as error:
            log.warning("the checks of this model run again at its next start: %s: %s", self._file, error)


def _conditions(placement: Placement) -> dict[str, Any]:
    checkpoint, config = placement.checkpoint, placement.config
    files = sorted({file for file, _ in checkpoint.parameters.values()})
    device = placement.device
    return {
        "weights": [_identity(file) for file in files],
        **surroundings(checkpoint.folder),
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
    """Name, size and modification time: reading the file would take longer than the checks."""
    status = file.stat()
    return file.name, status.st_size, status.st_mtime_ns

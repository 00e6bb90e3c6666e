"""What the files depend on that loads keep in the cache folder for later ones. Knows nothing of what they hold."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = ("torch", "transformers")
_ENGINE = Path(__file__).parents[1]


def surroundings(folder: Path) -> dict[str, Any]:
    """What the engine computes of a checkpoint's weights depends on, but for its settings."""
    return {
        "config": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        "code": engine_code(),
        "torch": str(torch.__version__),
        "transformers": _transformers_version(),
        "processor": sorted(name for name, has in torch.cpu.get_capabilities().items() if has is True),
    }


@cache
def _transformers_version() -> str:
    return version("transformers")  # to import it takes half a second


@cache
def engine_code() -> str:
    """The hash of the code as this process, or the one that forked it, first read it."""
    return hash_of_code()


def hash_of_code() -> str:
    """A hash of the engine's sources and its libraries' versions as they are now.

    A version of the engine says nothing while its sources are being changed. Libraries are not imported for it.
    """
    digest = hashlib.sha256(repr([version(name) for name in _LIBRARIES]).encode())
    for source in sorted(_ENGINE.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()

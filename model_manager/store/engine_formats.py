"""Folders in the own formats of other engines, such as OpenVINO's: which files they hold, which engine loads them."""

from __future__ import annotations

from pathlib import Path

from ..wire.backends import BACKENDS
from ..wire.errors import ModelCorrupt

ENGINE_FILES = tuple(pattern for backend in BACKENDS.values() for pattern in backend.own_files)
"""Patterns of the files of all these formats."""


def is_in_format(folder: Path, backend: str) -> bool:
    """True if the folder holds a model in the own format of that back end."""
    return any((folder / name).is_file() for name in BACKENDS[backend].own_files[:1])


def check_format(folder: Path, model: str, backend: str) -> None:
    """Raises ModelCorrupt where a file of the back end's format is missing or empty."""
    for name in BACKENDS[backend].own_files:
        file = folder / name
        if "*" not in name and not (file.is_file() and file.stat().st_size):
            state = "empty" if file.is_file() else "missing"
            raise ModelCorrupt(f"--model {model}: {name} is {state}, a part of {backend}'s format; convert it again")


def readers(folder: Path) -> list[str]:
    """The back ends that load the folder as it is, by the format of its files."""
    return [name for name in BACKENDS if is_in_format(folder, name)]

"""A model's parameters by name, read a few at a time, so that never more of them is held than what is being packed.

Knows files and names; not what a parameter is for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open

_BASE = "model."
"""What transformers puts before the names of a decoder's parameters where it has a head; some files lack it."""
_NOT_LEARNED = "rotary_emb.inv_freq"
"""Old checkpoints carry what follows from the config."""

ParameterShape = tuple[int, ...]


class Parameters(Protocol):
    """Parameters that are read once."""

    def take(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The parameters with these names; they hold no memory once the caller drops them."""


class LoadedParameters:
    """Parameters of a model in memory, each given up as it is taken."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self._state = state

    def take(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        return {name: self._state.pop(name) for name in names}


class StoredParameters:
    """Parameters in safetensors files, mapped while they are read."""

    def __init__(self, places: Mapping[str, tuple[Path, str]]) -> None:
        """`places`: file, and name there, of each parameter."""
        self._places = places

    def take(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        taken = {}
        by_file: dict[Path, list[tuple[str, str]]] = {}
        for name in names:
            file, stored = self._places[name]
            by_file.setdefault(file, []).append((name, stored))
        for file, pairs in by_file.items():
            with safe_open(file, framework="pt") as tensors:
                taken.update({name: tensors.get_tensor(stored) for name, stored in pairs})
        return taken


def stored_parameters(
    wanted: Mapping[str, ParameterShape], found: Mapping[str, tuple[Path, ParameterShape]]
) -> StoredParameters | None:
    """The parameters that a model needs, if the files hold exactly these; `found`: file and shape of each.

    None if any is missing, additional or of another shape: transformers may still know what to do with it.
    """
    learned = {name for name in found if not name.endswith(_NOT_LEARNED)}
    names = _names(wanted, learned)
    if names.keys() != wanted.keys() or {*names.values()} != learned:
        return None
    if any(found[stored][1] != wanted[name] for name, stored in names.items()):
        return None
    return StoredParameters({name: (found[stored][0], stored) for name, stored in names.items()})


def _names(wanted: Iterable[str], found: Collection[str]) -> dict[str, str]:
    """The name in the files of each wanted parameter that is there."""
    candidates = ((name, stored) for name in wanted for stored in (name, name.removeprefix(_BASE)))
    return {name: stored for name, stored in candidates if stored in found}

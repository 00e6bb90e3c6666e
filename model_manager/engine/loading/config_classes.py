"""transformers' config classes, imported without its activations.

transformers' check of an activation's name imports the activations, which import compilers and collectives. Where the
model code is our own, this import takes longer than the rest of the start. Only configs of speech models need the
check.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from types import ModuleType

_ACTIVATIONS, _CHECKS = "transformers.activations", "transformers.utils.type_validators"


def import_config_checks() -> None:
    """Import the checks of configs without the activations; does nothing if either is imported already."""
    if _ACTIVATIONS in sys.modules or _CHECKS in sys.modules:
        return
    empty = ModuleType(_ACTIVATIONS)
    empty.ACT2FN = {}  # type: ignore[attr-defined]  # an empty table: no name is checked
    sys.modules[_ACTIVATIONS] = empty
    try:
        with contextlib.suppress(ImportError):  # of a transformers without this module; a config imports what it needs
            import_module(_CHECKS)
    finally:
        del sys.modules[_ACTIVATIONS]

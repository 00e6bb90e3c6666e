"""transformers' config classes, imported without its activations.

The check that an activation's name is one imports them, and they bring compilers and collectives, which take longer
than all else of a start whose model code is our own. Configs of speech models alone make that check.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from types import ModuleType

_ACTIVATIONS, _CHECKS = "transformers.activations", "transformers.utils.type_validators"


def import_config_checks() -> None:
    """Import the checks of configs as where there is no torch; nothing if they or the activations are there already."""
    if _ACTIVATIONS in sys.modules or _CHECKS in sys.modules:
        return
    empty = ModuleType(_ACTIVATIONS)
    empty.ACT2FN = {}  # type: ignore[attr-defined]  # then no name is checked
    sys.modules[_ACTIVATIONS] = empty
    try:
        with contextlib.suppress(ImportError):  # of a transformers without this module; a config imports what it needs
            import_module(_CHECKS)
    finally:
        del sys.modules[_ACTIVATIONS]

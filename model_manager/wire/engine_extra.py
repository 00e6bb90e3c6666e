"""Whether an engine can start in this Python: the packages of the extra `engine`, or another engine's environment. A
machine that only submits jobs needs neither.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from .backends import BACKENDS
from .config import ModelConfig
from .errors import ModelLoadFailed


def check_engine_extra(config: ModelConfig) -> None:
    """Raises ModelLoadFailed, with the command that installs what is missing, if this Python cannot run the engine."""
    if missing := [name for name in BACKENDS[config.backend].modules if find_spec(name) is None]:
        raise ModelLoadFailed(
            f"the engine runs on {', '.join(missing)}, which {sys.executable} lacks:"
            " pip install 'beam-millrace[engine]'"
        )

"""Whether millrace's own engine can start in this Python: the packages of the extra `engine`. A machine that only
submits jobs does not need them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from .backends import BACKENDS
from .config import ModelConfig
from .errors import ModelLoadFailed


def check_engine_extra(config: ModelConfig) -> None:
    """Raises ModelLoadFailed, with the command that installs what is missing, if this Python cannot run the engine."""
    backend = BACKENDS[config.backend]
    modules = () if backend.packages else backend.modules
    if missing := [name for name in modules if find_spec(name) is None]:
        raise ModelLoadFailed(
            f"the engine runs on {', '.join(missing)}, which {sys.executable} lacks:"
            " pip install 'beam-millrace[engine]'"
        )

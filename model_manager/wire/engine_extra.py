"""Whether the packages of the extra `engine` are installed. A machine that only submits jobs needs none of them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from .config import ModelConfig
from .errors import ModelLoadFailed

ENGINE_PACKAGES = ("accelerate", "numba", "safetensors", "torch", "transformers")


def check_engine_extra(config: ModelConfig) -> None:
    """Raises ModelLoadFailed, with the command that installs what is missing, if this Python cannot run the engine."""
    if config.backend == "fake":
        return
    if missing := [name for name in ENGINE_PACKAGES if find_spec(name) is None]:
        raise ModelLoadFailed(
            f"the engine runs on {', '.join(missing)}, which {sys.executable} lacks:"
            " pip install 'beam-millrace[engine]'"
        )

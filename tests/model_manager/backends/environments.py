"""The Python environments of the engines under test, made where they are missing, as their users make them.

python -m tests.model_manager.backends.environments

ENGINES names engines, with spaces between: then tests of the others are skipped.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from millrace.model_manager.store.environments import environment_python, install
from millrace.model_manager.wire.backends import BACKENDS

ALL = ("llama_cpp", "openvino", "ctranslate2", "vllm")


def named() -> tuple[str, ...]:
    """The engines that are tested."""
    return tuple(os.environ.get("ENGINES", "").split()) or ALL


def made(name: str) -> Path:
    """The engine's Python; one process makes the environment, and others that want it wait."""
    python = environment_python(name)
    python.parents[2].mkdir(parents=True, exist_ok=True)
    with (python.parents[2] / f".{name}.tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return python if python.exists() else install(BACKENDS[name])


def main() -> None:
    """One after another, with the seconds that each takes."""
    for name in named():
        began = time.monotonic()
        made(name)
        print(f"{name} is installed: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

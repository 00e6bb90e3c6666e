"""The environments of the engines, servers and clients under test, made where they are missing.

Those of engines are made as their users make them, others by tests/servers/python_environment.py and openai_node.py.

python -m tests.model_manager.backends.environments

ENGINES names engines, servers and clients, with spaces between: then tests of the others are skipped.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from millrace.model_manager.store.environments import environment_python, install
from millrace.model_manager.wire.backends import BACKENDS
from tests.servers import openai_node
from tests.servers.python_environment import PACKAGES, environment_of

_NODE = "openai_node"
ALL = ("llama_cpp", "openvino", "ctranslate2", "vllm", *PACKAGES, _NODE)


def named() -> tuple[str, ...]:
    """What is tested."""
    return tuple(os.environ.get("ENGINES", "").split()) or ALL


def made(name: str) -> Path:
    """The Python of an engine, server or client, or the folder of Node's; one process makes the environment, and others
    that want it wait.
    """
    if name == _NODE:
        return openai_node.folder()
    if name in PACKAGES:
        return environment_of(name)
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

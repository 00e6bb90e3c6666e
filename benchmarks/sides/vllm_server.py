"""vLLM's own server with OpenAI's API, in a process of its own: for what speaks to a server. Standard library alone."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from benchmarks.sides.vllm import KV_CACHE_GIB
from benchmarks.workload import LONGEST

_START_SECONDS = 400
_END_SECONDS = 30
"""For a server to end when asked: less than the harness waits for the end of a side."""
OPTIONS = {
    "host": "127.0.0.1",
    "max-model-len": str(LONGEST),
    "no-enable-prefix-caching": None,
    "enforce-eager": None,
}
"""The prefix cache is off as everywhere, and nothing is compiled, which takes minutes; all else is the default."""


class VllmServer:
    """The server, ready; it ends with this process. Raises SystemExit where it does not start."""

    def __init__(self, python: Path, folder: Path, dtype: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        with leading_groups():
            process = subprocess.Popen(command(python, folder, port, dtype), env=environment())
        atexit.register(end, process)
        wait_until_ready(f"http://127.0.0.1:{port}/health", process)


@contextlib.contextmanager
def leading_groups() -> Iterator[None]:
    """Each process that is started here, also by a library, leads a group of its own, which `end` ends."""
    with patch.object(subprocess, "Popen", functools.partial(subprocess.Popen, process_group=0)):
        yield


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, and with it all of the group: asked first, then killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def command(python: Path, folder: Path, port: int, dtype: str) -> list[str]:
    """The command that starts the server."""
    options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in OPTIONS.items()]
    served = ["--model", str(folder), "--dtype", dtype, "--port", str(port), "--disable-uvicorn-access-log"]
    return [str(python), "-m", "vllm.entrypoints.openai.api_server", *served, *options]


def wait_until_ready(health: str, process: subprocess.Popen[bytes]) -> None:
    """Until the route of that process answers 200; raises SystemExit if it ends before, or takes too long."""
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(health, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"{health} is not ready: status {process.poll()}")


def environment() -> dict[str, str]:
    """Variables of a vLLM that computes on a CPU."""
    ours = {"VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ours

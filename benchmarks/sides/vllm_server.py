"""vLLM's own server with OpenAI's API, in a process of its own: for what speaks to a server. Standard library alone."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.sides.vllm import KV_CACHE_GIB
from benchmarks.workload import LONGEST

_START_SECONDS = 400
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
        options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in OPTIONS.items()]
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", dtype]
        address = ["--port", str(port), "--disable-uvicorn-access-log"]
        self._process = subprocess.Popen([*command, *address, *options], env=environment())
        atexit.register(self._end)
        self._wait(f"http://127.0.0.1:{port}/health")

    def _wait(self, health: str) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                urllib.request.urlopen(health, timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
            else:
                return
        raise SystemExit(f"vLLM's server is not ready: status {self._process.poll()}")

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


def environment() -> dict[str, str]:
    """Variables of a vLLM that computes on a CPU."""
    ours = {"VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ours

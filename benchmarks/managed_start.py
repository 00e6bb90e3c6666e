"""Loads by a manager, as clients wait for them: its first one, with the manager's own start, one after that, and one
for `millrace serve`.

Knows millrace alone. Where no server is asked, the client is this process, so its imports are not counted.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.memory import peak_rss_mb
from benchmarks.sides.millrace import settings
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams

FIRST, SECOND, SERVE = "millrace-first-load", "millrace-second-load", "millrace-serve"
_PROMPT = list(range(100, 228))
_ENDS_WITHIN = 60.0
_MOMENT = 0.01


@dataclass(frozen=True)
class ManagedStart:
    """One load; what benchmarks.start asks of a contestant."""

    first_token_s: float
    load_s: float
    """The engine's load of the model: a part of it."""
    peak_rss_mb: float
    """The sum over the manager and all that it started; pages that they share count for each."""
    memory: dict[str, float] = field(default_factory=dict)


def load(name: str, folder: Path, dtype: str) -> ManagedStart:
    """The first load of a new manager, the load that follows when its engine is killed, or the load of a server."""
    if name == SERVE:
        return _served(folder, settings(folder, dtype))
    config = ModelConfig.parse(settings(folder, dtype))
    with tempfile.TemporaryDirectory(prefix="millrace-") as place:
        runtime, began = Path(place) / "run", time.perf_counter()
        with EngineClient.open(config, runtime=runtime, manager=ManagerConfig(linger=0), chat=False) as client:
            _first_token(client, FIRST)
            if name == SECOND:
                began = time.perf_counter()
                os.kill(_engine(runtime), signal.SIGKILL)
                _first_token(client, SECOND)
            seconds = time.perf_counter() - began
            manager = psutil.Process(psutil.Process(_engine(runtime)).ppid())
            started = ManagedStart(seconds, client.info.load_seconds, peak_rss_mb(manager.pid, f"of={runtime}"))
        manager.wait(_ENDS_WITHIN)
    return started


def _served(folder: Path, fields: dict[str, Any]) -> ManagedStart:
    """From the command to the first token of a stream; asked again and again until the server is there and ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = [f"--{name}={value}" for name, value in fields.items() if name != "prefix_caching"]
    command = [sys.executable, "-m", "millrace", "serve", *flags, "--no-prefix_caching", "--linger", "0"]
    with tempfile.TemporaryDirectory(prefix="millrace-") as place:
        runtime, began = Path(place) / "run", time.perf_counter()
        environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime)}
        server = subprocess.Popen([*command, "--port", str(port), "--log_level", "warning"], env=environment)
        try:
            _first_line(server, port, str(folder))
            seconds = time.perf_counter() - began
            manager = psutil.Process(psutil.Process(_engine(runtime)).ppid())
            status = read_status(runtime)
            assert status is not None
            assert status.models[0].info is not None
            load = status.models[0].info.load_seconds
            started = ManagedStart(seconds, load, peak_rss_mb(manager.pid, f"MILLRACE_RUNTIME_DIR={runtime}"))
        finally:
            server.terminate()
            server.wait(_ENDS_WITHIN)
        manager.wait(_ENDS_WITHIN)
    return started


def _first_line(server: subprocess.Popen[bytes], port: int, model: str) -> None:
    body = json.dumps({"model": model, "prompt": _PROMPT, "max_tokens": 2, "stream": True, "ignore_eos": True})
    while server.poll() is None:
        with suppress(ConnectionError), closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status == http.HTTPStatus.OK:
                assert response.readline().startswith(b"data: {")
                return
            assert response.status == http.HTTPStatus.SERVICE_UNAVAILABLE, response.read()
        time.sleep(_MOMENT)
    raise RuntimeError(f"the server ended with {server.returncode} before its first token")


def _first_token(client: EngineClient, name: str) -> None:
    client.submit(_PROMPT, SamplingParams(max_tokens=1, ignore_eos=True), request_id=name).result()


def _engine(runtime: Path) -> int:
    status = read_status(runtime)
    assert status is not None
    return status.models[0].pids[0]

"""A server as a process of its own, as a user starts it, and what the machine says of its requests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.messages import Status
from tests.runtime_folders import status_of
from tests.waiting import eventually

MODEL = EMBEDDED_MODEL
_URL = re.compile(r" at (https?://\S+);")


class Server:
    """A running `millrace serve`."""

    def __init__(self, process: subprocess.Popen[str], runtime: Path) -> None:
        self.process = process
        self.runtime = runtime
        self.closing = contextlib.ExitStack()
        self.lines: list[str] = []
        """What it has printed on stderr."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        eventually(lambda: self._found() or process.poll() is not None, "the server says where it listens")
        if process.poll() is not None:
            self._reader.join(120)
        found = self._found()
        assert found is not None, "\n".join(self.lines)
        self.url = found

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def _found(self) -> str | None:
        return next((found[1] for line in self.lines if (found := _URL.search(line))), None)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def wait_until_ready(self) -> Server:
        """Itself, once the model is loaded."""
        eventually(lambda: self.process.poll() is not None or httpx.get(f"{self.url}/ready").status_code == 200)
        assert self.process.poll() is None, "\n".join(self.lines)
        return self

    def client(self, key: str = "none") -> openai.OpenAI:
        """OpenAI's own client, which tries nothing twice."""
        made = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120)
        self.closing.callback(made.close)
        return made

    def post(self, path: str, body: object, **more: object) -> httpx.Response:
        """An answer as it is."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=120, **more)  # type: ignore[arg-type]

    def status(self) -> Status:
        """What its manager says, once there is one that answers."""
        found: Status = eventually(lambda: status_of(self.runtime), "the manager answers")
        return found

    def outstanding(self) -> int:
        """Requests that the manager has accepted and not answered."""
        return sum(model.outstanding for model in self.status().models)

    def engine_pids(self) -> list[int]:
        """The inference processes."""
        return [pid for model in self.status().models for pid in model.pids]

    def engine_pid(self) -> int:
        """The inference process of a server that has one, once it is there."""
        pids = eventually(self.engine_pids, "an engine runs")
        assert len(pids) == 1
        return int(pids[0])

    def ended(self) -> int:
        """The exit status, once the process has ended and all that it printed is read."""
        status = self.process.wait(120)
        self._reader.join(120)
        return status


@contextlib.contextmanager
def running(runtime: Path, *flags: str, before: Sequence[str] = (), **env: str) -> Iterator[Server]:
    """A server on a free port, with files of its own, by a command that may have others before it; killed at the end,
    if it is still there.
    """
    own = ["--port", "0", "--files_dir", f"{runtime}-files"]
    command = [*before, sys.executable, "-m", "millrace", "serve", *own, *flags]
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime)} | env
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            server = Server(process, runtime)
            with server.closing:
                yield server
        finally:
            process.kill()


@contextlib.contextmanager
def fake_server(runtime: Path, *flags: str, step: float = 0.0, before: Sequence[str] = ()) -> Iterator[Server]:
    """A server whose engine has no model: a token a step of so many seconds. Nothing is left of it in the end."""
    try:
        delay = {"MILLRACE_FAKE_STEP_SECONDS": str(step)}
        with running(runtime, "--backend", "fake", *flags, before=before, **delay) as server:
            yield server.wait_until_ready()
    finally:
        stop_models(runtime)


def connected(server: Server) -> socket.socket:
    """A connection to it."""
    return socket.create_connection(("127.0.0.1", server.port), 60)


def request(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    """A request as bytes."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def peak_memory(server: Server) -> int:
    """The most memory that the server has had so far, in bytes."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

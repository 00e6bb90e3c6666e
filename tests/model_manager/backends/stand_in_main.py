"""A server as a program: `python -m tests.model_manager.backends.stand_in_main PORT FOLDER [GRPC_PORT]`.

It has a child process, as servers have, which ignores SIGTERM and is in a session of its own. In FOLDER it writes both
process ids (and `overlap` if those that stood there still run), its environment, the path of a temporary file that it
leaves, a line for each start, and one for each prompt. The prompts `die` and `hang` do that at the first time. The
prompt `fault` gets 500. The file `strike` there, with a moment and a signal's number, has the next server send itself
that signal then: at its `start`, or as it is asked for a route. With a status for the signal it answers so, and is
unhealthy from then on.

While it is unhealthy it answers 503 at /health and 500 to each prompt: for good from the first prompt `unhealthy` on,
for a second from the first prompt `unhealthy for 1 s` on. With the file `always unhealthy` there any prompt makes it
unhealthy. With the file `overload` /health answers 503, and prompts are answered. It counts these answers of /health in
the file `unhealthy asks`. With a port for it, it answers prompts over gRPC too. It wants the key that the variable
STAND_IN_KEY has, at each route.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from tests.model_manager.backends.stand_in_grpc import grpc_serving
from tests.model_manager.backends.stand_in_server import StandIn

_UNHEALTHY, _LEAST_STATUS = 503, 300
_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
_ONCE = {"die": signal.SIGKILL, "hang": signal.SIGSTOP}
_UNHEALTHY_FOR = {"unhealthy": math.inf, "unhealthy for 1 s": 1.0}
"""Seconds, by the prompt that begins them."""


def main(port: int, folder: Path, grpc_port: int = 0) -> None:
    """Serve until it is ended."""
    if (folder / "refuse").exists():
        sys.exit("no such model: it was refused")
    note_start(folder)
    strike(folder, "start")
    faults = Faults(folder)
    with grpc_serving() as over_grpc:
        if grpc_port:
            over_grpc.start(lambda *each: "INTERNAL" if faults.of_prompt(*each) else None, port=grpc_port)
        asyncio.run(serve(port, faults))


def note_start(folder: Path) -> None:
    """Start the child, and write what a test reads of this start."""
    (folder / "environment").write_text(json.dumps(dict(os.environ)))
    child = subprocess.Popen([sys.executable, "-c", _CHILD], start_new_session=True)
    if (folder / "pids").exists() and any(runs(int(pid)) for pid in (folder / "pids").read_text().split()):
        (folder / "overlap").touch()
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    (folder / "left").write_text(tempfile.mkstemp()[1])
    with (folder / "starts").open("a") as starts:
        starts.write("start\n")


class Faults:
    """What goes wrong, by prompts and by files in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unhealthy_until = 0.0

    def of_prompt(self, prompt: str, _tries: int) -> Any:
        """500 if the prompt fails, else None. May end or stop this process."""
        with (self._folder / "prompts").open("a") as prompts:
            prompts.write(f"{prompt}\n")
        if prompt in {*_ONCE, *_UNHEALTHY_FOR} and not (self._folder / prompt).exists():
            (self._folder / prompt).touch()
            if prompt in _ONCE:
                os.kill(os.getpid(), _ONCE[prompt])
            self._unhealthy_until = time.monotonic() + _UNHEALTHY_FOR.get(prompt, 0.0)
        if (self._folder / "always unhealthy").exists():
            self._unhealthy_until = math.inf
        return 500 if self._is_unhealthy() or prompt == "fault" else None

    def of_route(self, path: str) -> int:
        """The status to answer a route with; 0 if it is answered as usual."""
        if status := strike(self._folder, path):
            self._unhealthy_until = math.inf
            return status
        if path == "/health" and (self._is_unhealthy() or (self._folder / "overload").exists()):
            with (self._folder / "unhealthy asks").open("a") as asks:
                asks.write(".")
            return _UNHEALTHY
        return 0

    def _is_unhealthy(self) -> bool:
        return time.monotonic() < self._unhealthy_until


async def serve(port: int, faults: Faults) -> None:
    """Serve over HTTP until the process is ended."""

    @web.middleware
    async def faulty(request: web.Request, handler: Any) -> web.StreamResponse:
        if status := faults.of_route(request.path):
            return web.Response(status=status)
        found: web.StreamResponse = await handler(request)
        return found

    server = StandIn()
    server.behaves = faults.of_prompt
    server.key = os.environ.get("STAND_IN_KEY", "")
    app = server.app()
    app.middlewares.append(faulty)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def runs(pid: int) -> bool:
    """Whether a process is there, and not about to be forgotten."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def strike(folder: Path, moment: str) -> int:
    """Obey the file `strike`, once; returns the status that it says to answer, or 0."""
    path = folder / "strike"
    if path.exists() and path.read_text().split()[0] == moment:
        number = int(path.read_text().split()[1])
        path.unlink()
        if number >= _LEAST_STATUS:
            return number
        os.kill(os.getpid(), number)
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))

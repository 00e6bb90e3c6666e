"""A server as a program: `python -m tests.model_manager.backends.stand_in_main PORT FOLDER`.

It has a child process, as servers have, which ignores SIGTERM and is in a session of its own. In FOLDER it writes both
process ids (and `overlap` if those that stood there still run), its PYTHONPATH, the path of a temporary file that it
leaves, a line for each start, and one for each prompt. The prompts `die` and `hang` do that at the first time. The file
`strike` there, with a moment and a signal's number, has the next server send itself that signal then: at its `start`,
or as it is asked for a route.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from tests.model_manager.backends.stand_in_server import StandIn

_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main(port: int, folder: Path) -> None:
    """Serve until it is ended."""
    if (folder / "refuse").exists():
        sys.exit("no such model: it was refused")
    (folder / "path").write_text(os.environ["PYTHONPATH"])
    child = subprocess.Popen([sys.executable, "-c", _CHILD], start_new_session=True)
    if (folder / "pids").exists() and any(runs(int(pid)) for pid in (folder / "pids").read_text().split()):
        (folder / "overlap").touch()
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    (folder / "left").write_text(tempfile.mkstemp()[1])
    with (folder / "starts").open("a") as starts:
        starts.write("start\n")
    strike(folder, "start")
    once = {"die": signal.SIGKILL, "hang": signal.SIGSTOP}

    def behaves(prompt: str, _tries: int) -> Any:
        with (folder / "prompts").open("a") as prompts:
            prompts.write(f"{prompt}\n")
        if prompt in once and not (folder / prompt).exists():
            (folder / prompt).touch()
            os.kill(os.getpid(), once[prompt])

    @web.middleware
    async def struck(request: web.Request, handler: Any) -> web.StreamResponse:
        strike(folder, request.path)
        found: web.StreamResponse = await handler(request)
        return found

    async def serve() -> None:
        server = StandIn()
        server.behaves = behaves
        app = server.app()
        app.middlewares.append(struck)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    asyncio.run(serve())


def runs(pid: int) -> bool:
    """Whether a process is there, and not about to be forgotten."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def strike(folder: Path, moment: str) -> None:
    """Obey the file `strike`, once."""
    path = folder / "strike"
    if path.exists() and path.read_text().split()[0] == moment:
        number = int(path.read_text().split()[1])
        path.unlink()
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

"""A process between the inference process and its server, which ends the server with all that it has started.

`python -m millrace.model_manager.backends.server.guard FOLDER COMMAND…`. Its standard input is a pipe from the
inference process. When that closes, however the inference process ended, the guard ends the server; when the server
ends, so does the guard, with the same status. Servers start processes of their own, and a kernel signal at a parent's
death reaches only one of them: orphans fall to the guard ("subreaper") and are ended too. FOLDER is where the server
has its temporary files, such as sockets that a killed one leaves; it is removed at the end, and so is what the server
left elsewhere (leftovers.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil  # type: ignore[import-untyped, unused-ignore]

from .leftovers import Leftovers

GRACE = 3.0
"""Seconds that the server has to end when asked, before it is killed."""
NOT_STARTED = 127
"""Exit status if the command cannot be run."""
SIGNALLED = 128
"""Above it, the exit status says which signal ended the server."""
_LOOK_EVERY = 1.0
"""Seconds between two looks at what the server uses outside its folder."""
_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables of our Python; the server may run in another."""
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36


def main(folder: str, command: list[str]) -> None:
    """Run the command until it ends or standard input does; does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    leftovers = Leftovers()
    try:
        server = subprocess.Popen(
            command,
            env={name: value for name, value in os.environ.items() if name not in _OURS} | {"TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_prepare,  # noqa: PLW1509 (there is no other thread yet)
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(NOT_STARTED)
    threading.Thread(target=_follow, args=[server, folder, leftovers], daemon=True).start()
    threading.Thread(target=_look, args=[leftovers], daemon=True).start()
    while os.read(0, 1024):
        pass
    _end(server.pid, folder, leftovers)
    os._exit(0)


def _prepare() -> None:
    """Runs in the server's process before its program: the server must not outlive the guard."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _follow(server: subprocess.Popen[bytes], folder: str, leftovers: Leftovers) -> None:
    status = server.wait()
    _end(server.pid, folder, leftovers)
    os._exit(status if status >= 0 else SIGNALLED - status)


def _look(leftovers: Leftovers) -> None:
    while True:
        time.sleep(_LOOK_EVERY)
        leftovers.look(lambda: [process.pid for process in _below()])


def _end(group: int, folder: str, leftovers: Leftovers) -> None:
    """End everything below this process: asked first, then killed. Remove what it left."""
    leftovers.note(process.pid for process in _below())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    psutil.wait_procs(_below(), timeout=GRACE)
    while below := _below():
        leftovers.note(process.pid for process in below)
        for process in below:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(below, timeout=1.0)
    leftovers.remove()
    shutil.rmtree(folder, ignore_errors=True)


def _below() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [process for process in found if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

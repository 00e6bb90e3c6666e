"""The process that imports what engines need and forks them (engine/fork_server.py), as it is started.

Its imports are most of an engine's start, so the manager starts it before its own: this module imports little.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from dataclasses import dataclass

FORK_SERVER_COMMAND = (sys.executable, "-P", "-m", "millrace.model_manager.engine.fork_server")
_ROOM = 256
"""Bytes of an engine's arguments that ps can show, beside the fork server's own."""


@dataclass(frozen=True)
class ForkServerProcess:
    """The process, and our end of the socket to it."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    def end(self) -> None:
        """Kill it. Those that it forked go on."""
        self.process.kill()
        self.process.wait()
        self.socket.close()


def start_fork_server() -> ForkServerProcess:
    """Start the process; raises OSError.

    Only from the main thread: the kernel ends the process together with the thread that started it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with theirs, contextlib.ExitStack() as unless_started:
        unless_started.callback(ours.close)
        process = subprocess.Popen(
            [*FORK_SERVER_COMMAND, "--fd", str(theirs.fileno()), "--room", " " * _ROOM],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        unless_started.pop_all()
    return ForkServerProcess(process, ours)

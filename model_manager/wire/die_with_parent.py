"""python die_with_parent.py PID COMMAND …: becomes that command, which then ends with the process PID that started it.

Ctrl-C, which goes to the whole group of processes, does not reach it: what that means is its parent's decision. The
kernel counts the thread that starts the command as its parent: that thread has to wait for the command's end. (Linux;
elsewhere the command is only run.)
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_SET_PARENT_DEATH_SIGNAL = 1


def with_this_process(command: Sequence[str]) -> list[str]:
    """What starts `command` so that it ends with this process, also while it starts."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    """Does not return."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel was asked to tell
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

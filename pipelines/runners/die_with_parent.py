"""python die_with_parent.py COMMAND …: becomes that command, which then ends with the process that started it.

Ctrl-C, which goes to the whole group of processes, does not reach it: what that means is its parent's decision. (Linux;
elsewhere the command is only run.)
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def main(command: list[str]) -> None:
    """Does not return."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])

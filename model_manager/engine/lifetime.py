"""How a process of the engine ends together with the process that started it."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent(name: bytes) -> None:
    """Ignore Ctrl-C, and die with the parent.

    Ctrl-C reaches the whole process group, but the manager decides what it means. If the thread that started this
    process ends in any way, so does this process (on Linux; elsewhere when the pipe that it reads closes). `name`, at
    most 15 bytes, is what top shows.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        set_parent_death_signal, set_name = 1, 15
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        libc.prctl(set_name, name, 0, 0, 0)

"""Other processes, as tests look at them and hold them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped, unused-ignore]


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, though its parent may not know yet; it may end between two questions."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """It stands still in the block, where it may be killed too."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

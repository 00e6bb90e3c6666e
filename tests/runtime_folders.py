"""What belongs to a runtime folder: what its manager says, and the processes that were started for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.messages import Status


def status_of(runtime: Path) -> Status | None:
    """What the manager says, if there is one and it answers."""
    with contextlib.suppress(MillraceError):
        return read_status(runtime)
    return None


def processes_of(runtime: Path) -> Iterator[psutil.Process]:
    """All but this one; `info` has their environ and cmdline."""
    for process in psutil.process_iter(["environ", "cmdline"]):
        mine = (process.info["environ"] or {}).get("MILLRACE_RUNTIME_DIR") == str(runtime)
        if mine and process.pid != os.getpid():
            yield process

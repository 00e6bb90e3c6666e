"""The fork server: `python -m millrace.model_manager.engine.fork_server --fd N --room …`, started by the manager.

It has imported what an engine of the back end torch needs, and forks an inference process for each message on
descriptor N: seconds of imports become milliseconds. It has one thread, no model, and has touched no device, so a
forked process still chooses its threads and GPUs. The manager becomes its parent, so that it outlives the fork server.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .this_process import die_with_parent

READY = b"ready"
_IDLE = 5.0
"""Seconds without a message after which it imports what only some models need."""
_LARGEST = 2**16
"""Bytes of a message: the arguments of an engine and variables of its environment."""
_STDERR = 2
_ARG_START, _ARG_END = 45, 46
"""Fields of /proc/self/stat behind the name: where this process's arguments lie."""


def main() -> int:
    """Fork engines until the manager is gone; returns the exit status, in an engine its own."""
    parser = argparse.ArgumentParser(description="Forks inference processes; the model manager starts it.")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the manager")
    parser.add_argument("--room", default="", help="blanks, where ps is to show an engine's arguments")
    manager = socket.socket(fileno=parser.parse_args().fd)
    die_with_parent(b"millrace-warm")
    if _is_closed(manager):
        return 1  # it was killed before this process had asked to die with it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would leave no child to wait for
    is_current = _import()
    if not _is_alone():
        return 1  # a fork would copy none of the other threads, and what they held would stay locked
    manager.send(READY)
    messages, has_all = select.poll(), False
    messages.register(manager, select.POLLIN)
    while True:
        if not has_all and not messages.poll(1000 * _IDLE):
            _import_transformers()
            has_all = True
            if not _is_alone():
                return 1
        content, descriptors, _, _ = socket.recv_fds(manager, _LARGEST, 2)
        if not content:
            return 0
        if not is_current():
            return 1  # engines would keep what old code computes as the result of the code that is there now
        pid = _fork()
        if pid == 0:
            manager.close()
            return _engine(json.loads(content), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        manager.send(str(pid).encode())


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it, or has ended."""
    ends = select.poll()
    ends.register(connection, 0)
    return bool(ends.poll(0))


def _is_alone() -> bool:
    """Whether this process has one thread."""
    return len([*Path("/proc/self/task").iterdir()]) == 1


def _import() -> Callable[[], bool]:
    """Returns what says whether the code is still what was imported."""
    _import_numpy()
    from . import load, process  # noqa: F401
    from .this_process import give_back

    load.import_engine()
    _import_at_load()
    give_back()
    from .loading.surroundings import engine_code, hash_of_code

    return lambda: engine_code() == hash_of_code()


def _import_numpy() -> None:
    """OpenBLAS would start its threads as numpy is imported; engines compute nothing with it."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy  # noqa: F401

    del os.environ["OPENBLAS_NUM_THREADS"]
    if before is not None:
        os.environ["OPENBLAS_NUM_THREADS"] = before


def _import_at_load() -> None:
    """What loading a model would import and prepare first."""
    from .cpu.kernel_cache import prepare
    from .loading.surroundings import engine_code

    engine_code()
    prepare()
    gc.freeze()  # the collector of a forked process would write to each object, and so copy it


def _import_transformers() -> None:
    """Models that were checked before do without it, so it does not delay the first engine."""
    from .loading.checkpoint import import_config_checks
    from .this_process import give_back

    with contextlib.suppress(ImportError):  # an engine whose model needs it says so
        import_config_checks()
        from transformers import AutoConfig  # noqa: F401
    gc.freeze()
    give_back()


def _fork() -> int:
    """The id of a new process, -1 if there is none; 0 in the new process, which has the manager as its parent.

    A process between the two ends at once, and the kernel gives its child to the manager, which has asked for it.
    """
    reading, writing = os.pipe()
    between = os.fork()
    if between:
        os.close(writing)
        pid = int(os.read(reading, 32) or -1)
        os.close(reading)
        os.waitpid(between, 0)
        return pid
    try:
        parent = os.getpid()
        if pid := os.fork():
            os.write(writing, str(pid).encode())
    except OSError:
        os._exit(1)
    if pid:
        os._exit(0)
    os.close(reading)
    os.close(writing)
    while os.getppid() == parent:
        time.sleep(0.0005)
    return 0


def _engine(told: dict[str, Any], connection: int, stderr: int) -> int:
    """Be an inference process as if started with these arguments, variables and descriptors."""
    from . import process

    os.dup2(stderr, _STDERR)
    os.close(stderr)
    os.environ.update(told["variables"])
    arguments = ["--fd", str(connection), "--model", told["model"]]
    _show([sys.executable, "-P", "-m", process.__name__, *arguments])
    return process.main(arguments)


def _show(arguments: list[str]) -> None:
    """Make ps show these arguments, as far as there is room, in place of the fork server's."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, size = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
    shown = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    ctypes.memmove(start, shown[: size - 1].ljust(size, b"\0"), size)


if __name__ == "__main__":
    sys.exit(main())

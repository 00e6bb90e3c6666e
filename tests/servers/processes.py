"""A server as a process of a test: started, waited for until it answers, and killed with all its children."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.wire.die_with_parent import with_this_process

_PORTS = itertools.cycle(random.SystemRandom().sample(range(20_000, 32_000), 12_000))
"""Each process has its own order, and gets none twice soon."""


@contextlib.contextmanager
def serving(
    command: Sequence[str | Path],
    answers: Callable[[], bool],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    deadline: float = 300.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """The running process, once it answers; its output goes to `log`. It dies with this process, however that ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            with_this_process([str(word) for word in command]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environment or {}),
        )
    try:
        _wait(process, answers, log, deadline)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may not lead its group yet
        process.wait()


def _wait(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path, deadline: float) -> None:
    end = time.monotonic() + deadline
    while not answers():
        if process.poll() is not None or time.monotonic() > end:
            said = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.args!r} does not answer (exit status {process.poll()}): {said}")
        time.sleep(0.05)


def listens(port: int) -> bool:
    """Whether somebody takes connections at this machine's port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def listening(pid: int | None = None) -> set[tuple[str, int]]:
    """Addresses and ports at which a process, by default this one, takes connections."""
    found = psutil.Process(pid).net_connections("tcp")
    addresses = [each.laddr for each in found if each.status == psutil.CONN_LISTEN]
    return {(address.ip.removeprefix("::ffff:"), address.port) for address in addresses}


def free_port() -> int:
    """A port that nobody used a moment ago, and that the kernel gives to nobody who asks for any."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there are always more")

"""A manager that stays, at a TCP address, as the container of a DaemonSet runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from millrace.model_manager.wire.address import TcpAddress
from millrace.model_manager.wire.config import ManagerConfig
from tests.model_manager.manager.machine import MANAGER, SETTINGS

ROOT = Path(__file__).parents[3]


class StayingManager:
    """Its process, whose models outlast their clients; started again it has the same address. A context manager."""

    def __init__(
        self,
        key: Path,
        host: str = "127.0.0.1",
        command: Sequence[str] = MANAGER,
        inside: Sequence[str] = (),
        flags: Sequence[str] = (),
    ) -> None:
        """`command`: arguments of Python; `inside`: what runs a command in a container; `flags`: further ones."""
        self.key = key
        self.address = TcpAddress(host, 0)
        self._inside = bool(inside)
        self._command = [*inside, sys.executable, *command, *flags]
        self.start()

    def start(self) -> None:
        """Returns once it listens."""
        settings = msgspec.json.encode(msgspec.structs.replace(SETTINGS, linger=60.0)).decode()
        arguments = ["--listen", str(self.address), "--key_file", str(self.key), "--settings", settings]
        command, env = [*self._command, *arguments], os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        assert said, "it ended"
        self.address = TcpAddress(self.address.host, int(said[-1].rpartition(":")[2]))

    def settings(self, port: int | None = None, key: Path | None = None) -> ManagerConfig:
        """A client's; `port`: of a way to the manager."""
        address = self.address if port is None else TcpAddress(self.address.host, port)
        place = {"manager": str(address), "manager_key_file": str(key or self.key)}
        return msgspec.structs.replace(SETTINGS, **place)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the manager with a signal. Returns once it is gone."""
        inside = psutil.Process(self.process.pid).children() if self._inside else []
        os.kill(inside[0].pid if inside else self.process.pid, number)
        self.process.communicate()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The process does nothing meanwhile; connections wait in its queue."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> StayingManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(signal.SIGTERM)

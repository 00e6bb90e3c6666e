"""The ports of a managed server: which are free, and who listens there. Knows no request."""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import psutil  # type: ignore[import-untyped, unused-ignore]

from ...wire.errors import ModelLoadFailed
from ...wire.server_options import ServerOptions
from .guard import GRACE

_POLL = 0.2
"""Seconds between two looks at a port that is not free."""
_LOOKS = int(4 * GRACE / _POLL)
"""How often it is looked at."""
_PROXIES = frozenset(("docker-proxy", "rootlessport", "pasta", "passt", "slirp4netns", "conmon", "gvproxy"))
"""Programs that listen for a container, which is nobody's child here."""


@dataclass(frozen=True)
class Ports:
    """Where a server listens on the loopback."""

    http: int
    grpc: int = 0
    """0: requests go over HTTP."""

    @classmethod
    def chosen(cls, options: ServerOptions) -> Self:
        """The ports that the options name, else free ones. The server may still lose a free one to another program."""
        free = [port for port in _free_ports() if port not in (options.port, options.grpc_port)]
        return cls(options.port or free[0], (options.grpc_port or free[-1]) if options.over_grpc else 0)

    @property
    def url(self) -> str:
        """Where requests go."""
        return f"grpc://127.0.0.1:{self.grpc}" if self.grpc else f"http://127.0.0.1:{self.http}"

    def await_free(self) -> None:
        """Returns when nothing listens at them: a server that was killed may take its guard's grace to end. Raises
        ModelLoadFailed if another program does, which would answer in the server's place.
        """
        for option, port in self._named():
            _await(option, port, partial(_is_free, port))

    def lock(self) -> socket.socket:
        """The port's lock: a socket that a guard inherits, and so holds until all that its server has started is gone.
        Returns when no other guard holds it: a killed server frees the port before the memory that it holds.
        """
        lock = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":  # which frees an abstract name with the last process that holds it
                name = f"\0millrace-server-{self.http}"
                _await("port", self.http, partial(_binds, lock, name), "the server that had it has not ended yet")
        except BaseException:
            lock.close()
            raise
        return lock

    def check_listeners(self, ours: int) -> None:
        """Raises ModelLoadFailed if what listens there is known to be neither process `ours` nor one below it."""
        for option, port in self._named():
            if found := _stranger(port, ours):
                raise ModelLoadFailed(
                    f"port {port}: {found} listens there, which the server did not start; the option {option}, or the"
                    " command, takes another"
                )

    def _named(self) -> list[tuple[str, int]]:
        """With the options that name them."""
        return [("port", self.http)] + ([("grpc_port", self.grpc)] if self.grpc else [])


def _free_ports() -> list[int]:
    """Two of them."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], other.getsockname()[1]]


def _await(option: str, port: int, is_free: Callable[[], bool], who: str = "another program listens there") -> None:
    for _ in range(_LOOKS):
        if is_free():
            return
        time.sleep(_POLL)
    raise ModelLoadFailed(f"port {port}: {who}; the option {option}, or the command, takes another")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier server do not matter
        return _binds(tried, ("127.0.0.1", port))


def _binds(tried: socket.socket, address: str | tuple[str, int]) -> bool:
    """Whether nobody else is bound to the address."""
    try:
        tried.bind(address)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _stranger(port: int, ours: int) -> str | None:
    """The process that listens at a port, where it is neither process `ours` nor one below it; None where it is, where
    it listens for a container, or where the system does not tell.
    """
    owners = _owners(port)
    if not owners or owners & _family(ours):
        return None
    found = [(pid, _name(pid)) for pid in sorted(owners)]
    if any(name in _PROXIES for _, name in found):
        return None
    pid, name = found[0]
    return f"process {pid} ({name})"


def _owners(port: int) -> set[int]:
    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError):  # macOS tells root alone
        return set()
    listening = (each for each in found if each.status == psutil.CONN_LISTEN and each.laddr[1:] == (port,))
    return {each.pid for each in listening if each.pid is not None}


def _family(pid: int) -> set[int]:
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return {pid}


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "gone"

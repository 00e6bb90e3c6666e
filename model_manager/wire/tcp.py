"""Sockets of a manager that listens on TCP: listening, connecting, noticing that the other side is gone.

Knows no message. On TCP nobody is known by a process id: the key proves who may connect, and the kernel's probes tell
that a host, or the way to it, is gone.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from .address import TcpAddress
from .errors import ConfigError
from .manager_key import check_key, client_context
from .runtime import BACKLOG
from .tls import Tls

HANDSHAKE_WITHIN = 5.0
"""Seconds."""
_IDLE_SECONDS = 5
_PROBE_SECONDS = 3
_PROBES = 4
_UNANSWERED_SECONDS = 17
"""A host that is gone is noticed after this time, or after idleness and all probes, which take as long."""


class Unreachable(Exception):
    """Nobody answers there, or no manager."""


@dataclass(frozen=True)
class TcpManager:
    """A manager that others start, with the key that it and its clients hold."""

    address: TcpAddress
    key_file: Path

    def __str__(self) -> str:
        return str(self.address)

    def check(self) -> None:
        """Raises ConfigError for a key file that cannot be used."""
        check_key(self.key_file)

    def connect(self, within: float = HANDSHAKE_WITHIN) -> tuple[socket.socket, Tls]:
        """A connection to the manager, which has proved that it holds the key, and its TLS session.

        Raises Unreachable if there is none after `within` seconds, ConfigError for another key.
        """
        tls = Tls(client_context(self.key_file))
        deadline = time.monotonic() + within
        try:
            sock = socket.create_connection((self.address.host, self.address.port), within)
        except OSError as error:
            raise Unreachable(error.strerror or str(error)) from None
        try:
            watch_peer(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls.shake_hands(sock, deadline)
            sock.settimeout(None)
        except BaseException as error:
            sock.close()
            raise self._explained(error) from None
        return sock, tls

    def _explained(self, error: BaseException) -> BaseException:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ConfigError(
                f"manager_key_file={str(self.key_file)!r}: the manager at {self} has another key; give both the same"
            )
        if isinstance(error, TimeoutError):
            return Unreachable("it accepts the connection and does not answer")
        if isinstance(error, ssl.SSLError):
            return Unreachable(f"what answers is no manager ({error.reason})")
        return Unreachable(str(error)) if isinstance(error, OSError) else error


def listening(address: TcpAddress) -> socket.socket:
    """A socket that listens there; raises ConfigError."""
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # `::` means IPv4 too
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(f"--listen {address}: cannot be had: {error.strerror or error}") from None


def watch_peer(sock: socket.socket) -> None:
    """Have the kernel end the connection some 17 seconds after its other side, or the way there, is gone (Linux)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_SECONDS * 1000)

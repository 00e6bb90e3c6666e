"""Addresses that servers listen on, as errors and users name them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from millrace.model_manager.wire.errors import ConfigError

BACKLOG = 2048
"""Connections that may wait to be accepted."""


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there; raises ConfigError, naming the flag to change."""
    with contextlib.ExitStack() as stack:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = stack.enter_context(socket.socket(family, kind))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
        except OSError as error:
            raise refused(host, port, error) from None
        yield sock


def refused(host: str, port: int, error: OSError) -> ConfigError:
    """Why an address cannot be listened on, naming the flag to change."""
    if isinstance(error, socket.gaierror):
        return ConfigError(f"host={host!r}: is no address of this machine: {error.strerror}")
    reason = f"cannot be listened on at {host}: {error.strerror or error}"
    return ConfigError(f"port={port}: {reason}; name another --port, or 0 for a free one")


def url(sock: socket.socket, scheme: str = "http") -> str:
    """Where a listening socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

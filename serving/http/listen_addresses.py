"""Addresses that servers listen on, as errors and users name them, and names that servers are asked by."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from millrace.model_manager.wire.errors import ConfigError

BACKLOG = 2048
"""Connections that may wait to be accepted."""
_PRIVATE = (".localhost", ".internal")
"""Under these no site has a name."""


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


@functools.lru_cache
def is_loopback(address: str) -> bool:
    """Whether an address is reached from this machine alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


@functools.lru_cache
def is_own_name(host: str, names: frozenset[str] = frozenset()) -> bool:
    """Whether a header Host is an address, the machine's name, one of `names`, or none that a site can have."""
    name = without_port(host)
    own = ("", socket.gethostname().lower(), *names)
    return name in own or f".{name}".endswith(_PRIVATE) or _is_address(name)


def without_port(host: str) -> str:
    """The name in a header Host."""
    try:
        return urlsplit(f"//{host}").hostname or host
    except ValueError:  # what cannot be read is nobody's name
        return host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

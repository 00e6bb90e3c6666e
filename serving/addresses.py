"""Addresses that servers listen on, as errors and users name them."""

from __future__ import annotations

import socket

from millrace.model_manager.wire.errors import ConfigError


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

"""The address of a manager: a folder of this machine, or a host and a port. Knows text, no socket."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .errors import ConfigError

_UNIX = "unix:"


@dataclass(frozen=True)
class TcpAddress:
    """Where a manager listens for clients of other containers."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def parse_address(text: str, name: str) -> Path | TcpAddress:
    """A runtime folder (`unix:FOLDER`) or a TCP address; raises ConfigError, which names the setting `name`."""
    if text.startswith(_UNIX) and text != _UNIX:
        return Path(text.removeprefix(_UNIX))
    if (found := _tcp_address(text)) is None:
        raise ConfigError(f"{name}={text!r}: takes unix:FOLDER or tcp://HOST:PORT")
    return found


def listen_address(text: str) -> TcpAddress:
    """What `--listen` of a manager says; raises ConfigError."""
    if text.startswith(_UNIX):
        raise ConfigError(f"listen={text!r}: takes tcp://HOST:PORT; in a folder, jobs start their own manager")
    if (found := _tcp_address(text)) is None:
        raise ConfigError(f"listen={text!r}: takes tcp://HOST:PORT")
    return found


def _tcp_address(text: str) -> TcpAddress | None:
    """None for a text with anything more, such as a path or a user."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # as the resolver does, which says no more than UnicodeError
    except ValueError:
        return None
    if parts.scheme != "tcp" or not host or port is None:
        return None
    found = TcpAddress(host, port)
    return found if text.lower() == str(found).lower() else None

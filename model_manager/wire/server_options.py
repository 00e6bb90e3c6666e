"""Options of the back end `server`, parsed once: its own, and the connection's (`endpoint_options.py`)."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from .conversion import check, converted, unknown
from .endpoint_options import EndpointOptions
from .errors import ConfigError
from .server_presets import PRESETS, Preset

_ITS_URL = {"urls": "http://127.0.0.1"}
"""Stands for the URL that the server gets when it starts."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server is started and watched. Raises ConfigError, naming the option, for a value outside its range."""

    preset: str = ""
    """A kind of server that is known (server_presets.py): gives what the other options leave out."""
    command: str = ""
    """Its arguments, without a shell; `{model}`, `{port}` and `{tensor_parallel}` are filled in."""
    health: str = ""
    """Route that answers 200 as soon as the server can work; /health by default."""
    port: int = 0
    """Port that it listens at, for a command without `{port}`; 0 is a free one."""
    served_model: str = ""
    """What requests call the model, if not as `model` does."""
    hang_timeout: float = 120.0
    """A server whose health route answers nothing for so many seconds is ended and started again."""
    unhealthy_timeout: float = 30.0
    """So is one that was ready and whose health route answers nothing but 5xx for so many seconds."""

    def __post_init__(self) -> None:
        if self.preset and self.preset not in PRESETS:
            raise ConfigError(unknown(self.preset, PRESETS, what="preset"))
        if not self.preset and not self.command:
            raise ConfigError("command is missing: takes the arguments of a server, or preset names a kind of server")
        check("health", self.health, not self.health or self.health.startswith("/"), "a route, such as /health")
        check("port", self.port, 0 <= self.port < 2**16, "0 (a free one) to 65535")
        for name in ("hang_timeout", "unhealthy_timeout"):
            check(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a finite number above 0")
        if "{port}" not in self.template and not self.port:
            raise ConfigError(
                f"command={self.template!r}: takes one with {{port}},"
                " or the option port beside it (--backend_options port=N)"
            )
        try:
            shlex.split(self.template)
        except ValueError:
            raise ConfigError(f"command={self.template!r}: has an unclosed quote, or ends in a backslash") from None

    @property
    def kind(self) -> Preset:
        """The preset, or an unknown server that speaks OpenAI's dialect."""
        return PRESETS.get(self.preset) or Preset(self.command)

    @property
    def template(self) -> str:
        """The command before anything is filled in."""
        return self.command or self.kind.command

    @property
    def health_route(self) -> str:
        """What is asked whether the server lives."""
        return self.health or self.kind.health

    def arguments(self, model: str, port: int, tensor_parallel: int) -> list[str]:
        """The command, ready to be run."""
        values = {"{model}": model, "{port}": str(port), "{tensor_parallel}": str(tensor_parallel)}
        parts = shlex.split(self.template)
        for name, value in values.items():
            parts = [part.replace(name, value) for part in parts]
        return parts


def parse(fields: Mapping[str, Any]) -> tuple[ServerOptions, dict[str, Any]]:
    """The server's options, and the connection's without its URL; raises ConfigError for what is neither's."""
    own = {name: value for name, value in fields.items() if name in ServerOptions.__struct_fields__}
    options = converted(own, ServerOptions, ConfigError, what="option of the back end server")
    given = {name: value for name, value in fields.items() if name not in own}
    if "urls" in given:
        raise ConfigError("urls: the back end server makes its own URL; the back end endpoint takes urls")
    names = ("dialect", "extra_parameters", "max_connections")
    preset = {name: getattr(options.kind, name) for name in names}
    connection = preset | given
    EndpointOptions.parse(connection | _ITS_URL)
    return options, connection


def connection_of(backend: str, fields: Mapping[str, Any]) -> EndpointOptions | None:
    """How the servers of the back ends `endpoint` and `server` are asked, by its `backend_options`; None of another.

    Raises ConfigError, naming the option.
    """
    match backend:
        case "endpoint":
            return EndpointOptions.parse(fields)
        case "server":
            return EndpointOptions.parse(parse(fields)[1] | _ITS_URL)
        case _:
            return None

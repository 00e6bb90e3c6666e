"""Options of the back end `server`, parsed once: its own, and the connection's (`endpoint_options.py`)."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from .conversion import check, converted, unknown
from .endpoint_options import EndpointOptions
from .errors import ConfigError
from .server_presets import PRESETS, Preset

_ROUTE = re.compile("/[!-~]*")
_ITS_URLS = {False: "http://127.0.0.1", True: "grpc://127.0.0.1:1"}
"""What stands for the URL that the server gets when it starts, by whether requests go over gRPC."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server is started and watched. Raises ConfigError, naming the option, for a value outside its range."""

    preset: str = ""
    """A kind of server that is known (server_presets.py): gives what the other options leave out."""
    command: str = ""
    """Its arguments, without a shell; `{model}`, `{port}`, `{grpc_port}` and `{tensor_parallel}` are filled in. With
    `{grpc_port}` requests go over gRPC, in the dialect kserve."""
    health: str = ""
    """Route that answers 200 as soon as the server can work; /health by default."""
    port: int = 0
    """Port that it listens at, for a command without `{port}`; 0 is a free one."""
    grpc_port: int = 0
    """Port of its gRPC, for a command without `{grpc_port}`; requests then go over gRPC too."""
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
        check("health", self.health, not self.health or bool(_ROUTE.fullmatch(self.health)), "a route, such as /health")
        for name in ("port", "grpc_port"):
            check(name, getattr(self, name), 0 <= getattr(self, name) < 2**16, "0 (a free one) to 65535")
        both = self.port == self.grpc_port > 0
        check("grpc_port", self.grpc_port, not both, "another port than the option port")
        if self.grpc_port and not self.command:
            raise ConfigError(
                f"grpc_port={self.grpc_port}: the preset {self.preset} starts its server without gRPC: takes the option"
                " command beside it, with a server that listens there"
            )
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
    def over_grpc(self) -> bool:
        """Whether it is asked over gRPC."""
        return self.grpc_port > 0 or "{grpc_port}" in self.template

    @property
    def health_route(self) -> str:
        """What is asked whether the server lives."""
        return self.health or self.kind.health

    def arguments(self, model: str, port: int, tensor_parallel: int, grpc_port: int = 0) -> list[str]:
        """The command, ready to be run."""
        ports = {"{port}": str(port), "{grpc_port}": str(grpc_port)}
        values = {"{model}": model, "{tensor_parallel}": str(tensor_parallel)} | ports
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
    over_grpc = {"dialect": "kserve"} if options.over_grpc else {}
    connection = preset | over_grpc | given
    if options.over_grpc:
        takes = "kserve over gRPC, which {grpc_port} in the command and the option grpc_port ask for"
        check("dialect", connection["dialect"], connection["dialect"] == "kserve", takes)
    _asked(options, connection)
    return options, connection


def connection_of(backend: str, fields: Mapping[str, Any]) -> EndpointOptions | None:
    """How the servers of the back ends `endpoint` and `server` are asked, by its `backend_options`; None of another.

    Raises ConfigError, naming the option.
    """
    match backend:
        case "endpoint":
            return EndpointOptions.parse(fields)
        case "server":
            return _asked(*parse(fields))
        case _:
            return None


def _asked(options: ServerOptions, connection: Mapping[str, Any]) -> EndpointOptions:
    return EndpointOptions.parse({**connection, "urls": _ITS_URLS[options.over_grpc]})

"""`--backend`, its options and endpoints: which engine answers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.field_docs import field_docs
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.server_presets import PRESETS
from millrace.transforms.requests.engine_checks import check_asked

from .from_settings import given

_NAMES = ("backend", "backend_python")
_OF_FLAGS = {"urls": "--endpoint", "command": "--server_command"}
"""Options that have flags of their own."""
_NAMED = re.compile(r"[A-Za-z_]\w*=")


def add_backend(group: Any) -> list[str]:
    """Adds the flags; returns the settings of ModelConfig that `read_backend` gives."""
    docs = field_docs(ModelConfig)
    group.add_argument("--backend", metavar="NAME", help=f"{docs['backend']} Default: torch.")
    group.add_argument(
        "--backend_options",
        nargs="+",
        action="extend",
        metavar="NAME=VALUE",
        help=f"{docs['backend_options']} A value is read as JSON, else as text.",
    )
    group.add_argument(
        "--endpoint",
        nargs="+",
        action="extend",
        metavar="URL",
        help="Base URLs of remote servers that run the model. Short for --backend endpoint with its option urls.",
    )
    group.add_argument(
        "--server_command",
        metavar="COMMAND",
        help="Command that starts a server, such as 'trtllm-serve {model} --port {port}'. Short for --backend server "
        "with its option command.",
    )
    group.add_argument("--backend_python", metavar="PATH", help=docs["backend_python"])
    return ["backend", "backend_options", "backend_python"]


def read_backend(known: argparse.Namespace) -> dict[str, Any]:
    """The settings of ModelConfig that were given; raises ConfigError."""
    fields = given(known, _NAMES)
    options = dict(map(_option, _separate(known.backend_options or [])))
    if known.endpoint:
        _imply(fields, "--endpoint", "endpoint")
        options["urls"] = ",".join(known.endpoint)
    if known.server_command:
        _imply(fields, "--server_command", "server")
        options["command"] = known.server_command
    _check_named(fields.get("backend"), options)
    return fields | ({"backend_options": options} if options else {})


def given_backend(known: argparse.Namespace) -> dict[str, Any]:
    """The flags that `read_backend` reads, as they were given."""
    return given(known, (*_NAMES, "backend_options", "endpoint", "server_command"))


def _check_named(backend: str | None, options: dict[str, Any]) -> None:
    """Raises ConfigError for a kind of server as back end, and for a back end over HTTP without its server."""
    if backend in PRESETS and backend not in BACKENDS:
        raise ConfigError(
            f"--backend {backend}: is a kind of server: --backend server --backend_options preset={backend} starts one,"
            " --endpoint URL asks one that runs"
        )
    servers = BACKENDS[backend].servers if backend in BACKENDS else "none"
    if servers == "remote" and not options.get("urls"):
        raise ConfigError("--backend endpoint: needs --endpoint URL, with one or more URLs of servers")
    if servers == "started" and not (options.get("command") or options.get("preset")):
        raise ConfigError(
            "--backend server: needs --server_command COMMAND, or --backend_options preset=NAME for a kind of server"
        )


def check_engine_flags(model: ModelConfig, task: str, params: SamplingParams) -> None:
    """Raises ConfigError, by the flag, for what the engine does not take."""
    try:
        check_asked(model, task, params)
    except ConfigError as error:
        text = str(error)
        for option, flag in _OF_FLAGS.items():
            text = re.sub(rf"^backend_options: {option}(=|: )", f"{flag} ", text)
        raise ConfigError(text) from None


def _imply(fields: dict[str, Any], flag: str, backend: str) -> None:
    """A flag that is about one back end names it; raises ConfigError beside another."""
    if fields.setdefault("backend", backend) != backend:
        raise ConfigError(f"{flag} needs --backend {backend}; leave it out with --backend {fields['backend']}")


def _separate(pairs: Sequence[str]) -> list[str]:
    """A template's parameter is one text: its options are separated by spaces, where each has its name."""
    parts = [(pair, pair.split()) for pair in pairs]
    return [each for pair, split in parts for each in (split if all(map(_NAMED.match, split)) else [pair])]


def _option(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals or not name:
        raise ConfigError(f"--backend_options {pair}: takes NAME=VALUE, such as enforce_eager=true")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name, text
    return name, value if isinstance(value, str | int | float | bool) else text

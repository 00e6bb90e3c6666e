"""`millrace manager`: a manager that stays, for clients of other containers. Imports neither Beam nor torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from millrace.model_manager.client.election import MANAGER_COMMAND, module_path
from millrace.model_manager.wire.address import TcpAddress, listen_address
from millrace.model_manager.wire.config import PLACE_SETTINGS, ManagerConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.manager_key import check_key, make_key
from millrace.model_manager.wire.manager_place import KEY_VARIABLE

from ..edge import at_the_edge
from ..flags.from_settings import add_settings, given
from ..flags.parser import FlagParser


def main(arguments: Sequence[str]) -> int:
    """Make a key, or become the manager; returns the exit status."""
    return at_the_edge(lambda: _manager(arguments))


def _manager(arguments: Sequence[str]) -> int:
    parser, names = manager_parser()
    flags = parser.parse_args(list(arguments))
    if flags.make_key is None:
        _become(flags, names)
    make_key(Path(flags.make_key))
    print(f"key written: {flags.make_key}; give it to the manager and to its clients, and to nobody else")
    return 0


def _become(flags: argparse.Namespace, names: list[str]) -> NoReturn:
    """Run the manager in the place of this program."""
    settings = ManagerConfig.parse(given(flags, names))
    key_file, address = _key_file(flags), _address(flags)
    check_key(key_file)
    listen = ["--listen", str(address), "--key_file", str(key_file)]
    listen += ["--allow_commands"] if flags.allow_commands else []
    command = [sys.executable, *MANAGER_COMMAND, *listen, "--settings", msgspec.json.encode(settings).decode()]
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": module_path()})


def _address(flags: argparse.Namespace) -> TcpAddress:
    if flags.listen is None:
        raise ConfigError("--listen is missing: takes tcp://HOST:PORT")
    return listen_address(flags.listen)


def _key_file(flags: argparse.Namespace) -> Path:
    named = flags.manager_key_file or os.environ.get(KEY_VARIABLE)
    if not named:
        raise ConfigError(
            f"--manager_key_file is missing: takes the file of a key, as does {KEY_VARIABLE};"
            " make one with `millrace manager --make_key PATH`"
        )
    return Path(named).absolute()


def manager_parser() -> tuple[FlagParser, list[str]]:
    """The flags, and the names of those that are settings."""
    parser = FlagParser(
        prog="millrace manager",
        usage="%(prog)s --listen tcp://HOST:PORT --manager_key_file PATH [flags]",
        description="Run models for jobs and servers in other containers, until a signal comes.",
        allow_abbrev=False,
    )
    parser.add_argument("--listen", metavar="ADDRESS", help="Address where clients connect: tcp://HOST:PORT.")
    parser.add_argument(
        "--manager_key_file",
        metavar="PATH",
        help=f"File with the key that the manager shares with its clients. Default: {KEY_VARIABLE}.",
    )
    parser.add_argument("--make_key", metavar="PATH", help="Write a new key to this file, and exit.")
    parser.add_argument(
        "--allow_commands",
        action="store_true",
        help="Let clients name programs that the manager runs, and environment variables that it reads.",
    )
    group = parser.add_argument_group("manager (times in seconds)")
    return parser, add_settings(group, ManagerConfig, leave_out=(*PLACE_SETTINGS, "weight", "max_manager_losses"))

"""`millrace engines`: which engines there are, what each can do, and the Python environments of the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from millrace.model_manager.store.environments import environment_python, install
from millrace.model_manager.wire.backends import BACKENDS, Backend
from millrace.model_manager.wire.conversion import unknown
from millrace.model_manager.wire.errors import ConfigError

from ..edge import at_the_edge
from ..flags.parser import FlagParser


def main(arguments: Sequence[str]) -> int:
    """List the engines, or install one; returns the exit status."""
    return at_the_edge(lambda: _run(_parse(arguments)))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(
        prog="millrace engines",
        usage="%(prog)s [install NAME]",
        description="The engines that --backend names; `install` makes the Python environment of one.",
    )
    parser.add_argument("action", nargs="?", choices=["install"], metavar="install", help="Make an environment anew.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="An engine with packages of its own.")
    flags = parser.parse_args(list(arguments))
    if flags.action and not flags.name:
        raise ConfigError(f"millrace engines install: takes a name, one of {', '.join(_installable())}")
    return flags


def _run(flags: argparse.Namespace) -> int:
    if not flags.action:
        print("\n".join(map(_line, BACKENDS.values())))
        return 0
    if flags.name not in BACKENDS:
        raise ConfigError(unknown(flags.name, _installable(), what="engine"))
    print(f"{flags.name}: {install(BACKENDS[flags.name])}")
    return 0


def _line(backend: Backend) -> str:
    state = "installed" if environment_python(backend.name).exists() else "not installed"
    where = f"{', '.join(backend.packages)} ({state})" if backend.packages else "built in"
    return f"{backend.name:<12} {backend.summary}\n{'':<12} {where}; {', '.join(sorted(backend.tasks))}"


def _installable() -> list[str]:
    return [backend.name for backend in BACKENDS.values() if backend.packages]

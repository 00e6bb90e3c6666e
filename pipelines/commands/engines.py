"""`millrace engines`: which engines there are, what each can do and whether it starts here; `install` of one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from millrace.model_manager.store.environments import install, state
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
        with ThreadPoolExecutor() as tries:  # each is a process that imports an engine
            for line in tries.map(_line, BACKENDS.values()):
                print(line)
        return 0
    if flags.name not in BACKENDS:
        raise ConfigError(unknown(flags.name, _installable(), what="engine"))
    print(f"{flags.name}: {install(BACKENDS[flags.name])}")
    return 0


def _line(backend: Backend) -> str:
    tasks, packages = (", ".join(names) for names in (sorted(backend.tasks), backend.packages))
    lines = [f"{backend.summary}; for {tasks}", *([packages] if packages else []), state(backend)]
    return f"{backend.name:<12} " + f"\n{'':<13}".join(lines)


def _installable() -> list[str]:
    return [backend.name for backend in BACKENDS.values() if backend.packages]

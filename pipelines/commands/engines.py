"""`millrace engines`: which engines there are, what each can do and whether it starts here; `install` of one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import millrace
from millrace.model_manager.store.environments import EngineState, install, installed_version, state
from millrace.model_manager.wire.backends import BACKENDS, Backend
from millrace.model_manager.wire.conversion import unknown
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.tasks import TaskName

from ..edge import at_the_edge
from ..flags.parser import FlagParser


def main(arguments: Sequence[str]) -> int:
    """List the engines, or install one; returns the exit status."""
    return at_the_edge(lambda: _run(_parse(arguments)))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(
        prog="millrace engines",
        usage="%(prog)s [install NAME [--device cpu|cuda]]",
        description="The engines that --backend names; `install` makes the Python environment of one.",
    )
    parser.add_argument(
        "action",
        nargs="?",
        choices=["install"],
        metavar="install",
        help="Make the Python environment of an engine; an existing one is replaced.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="An engine with packages of its own.")
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        help="Processor that the environment is for. Default: cuda where this machine has NVIDIA's driver and the "
        "engine a build for it, else cpu.",
    )
    flags = parser.parse_args(list(arguments))
    if flags.action and not flags.name:
        raise ConfigError(f"millrace engines install: takes a name, one of {', '.join(_installable())}")
    if flags.device and not flags.action:
        raise ConfigError(f"--device {flags.device} needs millrace engines install NAME")
    return flags


def _run(flags: argparse.Namespace) -> int:
    if not flags.action:
        with ThreadPoolExecutor() as tries:  # each is a process that imports an engine
            states = list(tries.map(state, BACKENDS.values()))
        print("\n".join(_lines(dict(zip(BACKENDS, states, strict=True)))))
        return 0
    if flags.name not in BACKENDS:
        raise ConfigError(unknown(flags.name, _installable(), what="engine"))
    print(f"{flags.name}: {install(BACKENDS[flags.name], flags.device)}")
    return 0


def _lines(states: dict[str, EngineState]) -> Iterator[str]:
    """A table of at most 80 columns, and below it what keeps engines from starting."""
    rows = [("engine", "version", "tasks", "state")]
    rows += [_row(BACKENDS[name], each) for name, each in states.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield from ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    for name, each in states.items():
        if each.remedy:
            yield f"{name} {each.word}: {each.remedy}"


def _row(backend: Backend, found: EngineState) -> tuple[str, str, str, str]:
    tasks = [task for task in get_args(TaskName) if backend.can(task)]
    can = "all" if len(tasks) == len(get_args(TaskName)) else ", ".join(tasks)
    return backend.name, _version(backend), can, found.word


def _version(backend: Backend) -> str:
    """The version that is installed, else the one that would be; millrace's own for an engine without packages."""
    wanted: str = backend.packages[0].partition("==")[2] if backend.packages else millrace.__version__
    return installed_version(backend) or wanted


def _installable() -> list[str]:
    return [backend.name for backend in BACKENDS.values() if backend.packages]

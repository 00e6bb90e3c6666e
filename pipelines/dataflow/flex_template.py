"""The Flex Template's program for its launcher: parameters as the service passes them → the flags of our commands.

The service passes each parameter as `--name=value`. So a switch comes as `--overwrite=true`, and what takes several
values as one text: words with spaces between them, or a JSON list where a value has spaces itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

from millrace.model_manager.wire.errors import ConfigError

from ..edge import at_the_edge, leave
from ..flags.job_flags import make_parser
from ..flags.task_commands import TASKS, TaskCommand

_COMMAND = "--command="


def main(dispatch: Callable[[Sequence[str]], int]) -> None:
    """Build the job that the process's arguments describe, and end the process.

    `dispatch` runs a command. It is passed, because the module that has it imports this one's package.
    """
    leave(at_the_edge(lambda: launch(sys.argv[1:], dispatch)))


def launch(parameters: Sequence[str], dispatch: Callable[[Sequence[str]], int]) -> int:
    """Returns the exit status."""
    command, flags = flags_of(parameters)
    return dispatch([command, *flags])


def flags_of(parameters: Sequence[str]) -> tuple[str, list[str]]:
    """The command and its flags. Flags of Beam stay as they are. Raises ConfigError."""
    named = [each.removeprefix(_COMMAND) for each in parameters if each.startswith(_COMMAND)]
    command = named[-1] if named else "run"
    actions = make_parser(_task(command)).flags
    others = [each for each in parameters if not each.startswith(_COMMAND)]
    return command, [flag for each in others for flag in _flags(each, actions)]


def _task(command: str) -> TaskCommand:
    tasks = {task.command: task for task in TASKS.values()}
    if command not in tasks:
        raise ConfigError(f"command={command}: takes {', '.join(tasks)}")
    return tasks[command]


def _flags(parameter: str, actions: dict[str, argparse.Action]) -> Iterator[str]:
    name, given, value = parameter.partition("=")
    action = actions.get(name)
    if action is None or not given:
        yield parameter
    elif action.nargs == 0:
        yield from _switch(name, value, action)
    elif action.nargs:
        yield from (name, *_several(name, value))
    else:
        yield parameter


def _switch(name: str, value: str, action: argparse.Action) -> Iterator[str]:
    if value not in ("true", "false"):
        raise ConfigError(f"{name.removeprefix('--')}={value}: takes true or false")
    negative = f"--no-{name.removeprefix('--')}"
    if value == "true":
        yield name
    elif negative in action.option_strings:
        yield negative


def _several(name: str, value: str) -> list[str]:
    if not value.startswith("["):
        return value.split(" ")
    try:
        return msgspec.json.decode(value, type=list[str])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name.removeprefix('--')}={value}: takes a JSON list of strings: {error}") from None

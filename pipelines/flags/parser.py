"""argparse, with one sentence for what is wrong: the flag, what it got, and what it takes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import NoReturn

from millrace.model_manager.wire.conversion import did_you_mean, nearest
from millrace.model_manager.wire.errors import ConfigError

NO_INPUT = "--input is missing: takes one or more files or globs, or a stream"
_PAGES = "Pages named as (docs: …) are in the folder docs/ of millrace's repository."
_FEW = 6
"""Flags and arguments that an error lists; of a command with more, --help does."""
_KINDS = {
    "int": "an integer",
    "float": "a number",
    "seconds": "seconds, 0 or more",
    "positive_seconds": "seconds, more than 0",
}
"""What a flag takes, by the name of its type."""
_SENTENCES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", lambda found: _takes(found, found[3])),
    (r"argument (\S+): invalid (\w+) value: '(.*)'", lambda found: f"{found[1]} {found[3]}: takes {_kind(found[2])}"),
    (r"argument (\S+): ignored explicit argument '(.*)'", lambda found: f"{found[1]}={found[2]}: takes no value"),
    (
        r"argument (\S+): not allowed with argument (\S+)",
        lambda found: f"{found[1]} and {found[2]} exclude each other: leave one out",
    ),
    (r"argument (\S+): expected .*", lambda found: f"{found[1]}: takes a value, got none"),
    (r"argument (\S+): (.*)", lambda found: f"{found[1]}: {found[2]}"),
)
"""What argparse says, and what is said in its place."""


def seconds(text: str) -> float:
    """The type of a flag of seconds, 0 or more; the bound is checked where the value is used."""
    return float(text)


def positive_seconds(text: str) -> float:
    """The type of a flag of seconds above 0; the bound is checked where the value is used."""
    return float(text)


NUMBER_TYPES = (int, float, seconds, positive_seconds)
"""The types of flags that take a number."""


class FlagParser(argparse.ArgumentParser):
    """Raises ConfigError where argparse prints its usage and exits.

    A help that names pages of the documentation ends with the folder that holds them.
    """

    @property
    def flags(self) -> dict[str, argparse.Action]:
        """The flags with their actions; argparse itself lists them nowhere in public."""
        return {flag: action for action in self._actions for flag in action.option_strings}

    def format_help(self) -> str:
        text = super().format_help()
        if not re.search(r"\bdocs:\s", text):
            return text
        formatter = self._get_formatter()
        formatter.add_text(_PAGES)
        return f"{text}\n{formatter.format_help()}"

    def error(self, message: str) -> NoReturn:
        if found := re.fullmatch(r"the following arguments are required: (\S+?)(,.*)?", message):
            raise ConfigError(self._missing(found[1]))
        if found := re.fullmatch(r"unrecognized arguments: (\S+).*", message, re.DOTALL):
            raise ConfigError(self._strange(found[1]))
        for pattern, sentence in _SENTENCES:
            if found := re.fullmatch(pattern, message, re.DOTALL):
                raise ConfigError(sentence(found))
        raise ConfigError(message)

    def _strange(self, given: str) -> str:
        """What is said of an argument that the command does not take."""
        flags = [flag for flag in self.flags if flag.startswith("--") and flag != "--help"]
        places = [str(action.metavar or action.dest) for action in self._actions if not action.option_strings]
        taken = [*places, *flags]
        takes = f"{self.prog} takes {', '.join(taken) or 'no arguments'}" if len(taken) <= _FEW else "--help lists all"
        if not given.startswith("-"):
            return f"unexpected argument {given!r}: {takes}"
        flag = given.partition("=")[0]
        return f"unknown flag {flag}{did_you_mean(nearest(flag, flags), takes)}"

    def _missing(self, name: str) -> str:
        """What is said of a positional argument without a value; its help is a noun phrase."""
        action = next(each for each in self._actions if name in (each.metavar, each.dest))
        text = (action.help or "a value").rstrip(".")
        return f"{name} is missing: takes {text[0].lower()}{text[1:]}"


def _takes(found: re.Match[str], choices: str) -> str:
    """What is said of a value that is none of the choices; one without a flag needs no other name."""
    told = choices.replace("'", "")
    if found[1].startswith("-"):
        return f"{found[1]} {found[2]}: takes {told}"
    meant = nearest(found[2], told.split(", "))
    return f"unexpected argument {found[2]!r}{did_you_mean(meant, f'takes {told}')}"


def _kind(name: str) -> str:
    return _KINDS.get(name, name)

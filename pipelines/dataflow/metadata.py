"""The metadata of the Flex Template, made from our own flags.

Each flag is a parameter. A regular expression says what it takes.

python -m millrace.pipelines.dataflow.metadata > deploy/dataflow/metadata.json

The service matches whole values against POSIX extended expressions, before it starts anything. What a number's range
is, or which flags exclude each other, the job itself says.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from millrace.model_manager.wire.backends import BACKENDS

from ..flags.job_flags import make_parser
from ..flags.machines import GPUS
from ..flags.parser import NUMBER_TYPES
from ..flags.task_commands import TASKS

_LEFT_OUT = ("help", "dry_run", "quiet", "verbose", "report", "prices")
"""Flags that serve somebody at a terminal."""
_REQUIRED = ("input", "output")
_INTEGER = "-?[0-9]+"
_NUMBER = r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?"
_TARGET = "gs://[^ ]+|pubsub:[^ ]+|kafka:[^ ]+"
_PLACE = f"({_TARGET}|watch:gs://[^ ]+)"
_MODEL = "[-A-Za-z0-9_.:/@]+"
"""Also what a server calls its model, and a GGUF file."""
_BUCKET_OR_HUB = "gs://[^ ]+|[-A-Za-z0-9_.]+/[-A-Za-z0-9_.]+|/[^ ]+"
_TEXT: dict[str, str] = {
    "input": rf"({_PLACE}( {_PLACE})*|\[.+\])",
    "output": f"({_TARGET})",
    "dead_letters": f"({_TARGET})",
    "model": _MODEL,
    "draft_model": f"({_BUCKET_OR_HUB}|millrace-tiny)",
    "models": f"{_MODEL}(,{_MODEL})*",
    "model_updates": "watch:gs://[^ ]+",
    "adapter": f"({_BUCKET_OR_HUB})",
    "backend": f"({'|'.join(BACKENDS)})",
    "endpoint": "https?://[^ ]+( https?://[^ ]+)*",
    "otlp_endpoint": "https?://[^ ]+",
    "server_command": ".+",
    "backend_options": "[A-Za-z_][^ =]*=[^ ]*( [A-Za-z_][^ =]*=[^ ]*)*",
    "backend_python": "/[^ ]+",
    "revision": "[-A-Za-z0-9_./]+",
    "prompt_column": ".+",
    "text_column": ".+",
    "schema": r"(gs://[^ ]+|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*)",
    "labels": ".+",
    "examples": "gs://[^ ]+",
    "constraint": r"(gs://[^ ]+|\{.*\})",
    "template": r"(gs://[^ ]+|.*\{.+\}.*)",
    "system": ".+",
    "id_column": ".+",
    "continuations_column": ".+",
    "cache_salt": ".+",
    "manager": r"(tcp://[^ /]+:[0-9]+|unix:[^ ]+)",
    "manager_key_file": "/[^ ]+",
    "gpu": rf"(none|({'|'.join(GPUS)})(:[1-9][0-9]?)?)",
}
"""What text takes, flag by flag: one that is not here must be told."""

_IMAGE = {
    "name": "sdk_container_image",
    "label": "sdk container image",
    "helpText": "The image that workers run, with millrace in it, and with the engine that backend names (docs: "
    "Dataflow): the template's own.",
    "regexes": [r"^[-a-z0-9.]+(:[0-9]+)?(/[-a-z0-9_.]+)+(:[-A-Za-z0-9_.]+)?(@sha256:[0-9a-f]{64})?$"],
}


def metadata() -> dict[str, Any]:
    """As `gcloud dataflow flex-template build --metadata-file` takes it."""
    return {
        "name": "millrace",
        "description": "Millions of prompts through a language model: completions, scores, vectors, rows or labels.",
        "parameters": [_command(), _IMAGE, *_parameters()],
    }


def _command() -> dict[str, Any]:
    commands = [task.command for task in TASKS.values()]
    return {
        "name": "command",
        "label": "command",
        "helpText": f"What to do with each prompt: {', '.join(commands)}. Default: run.",
        "isOptional": True,
        "regexes": [f"^({'|'.join(commands)})$"],
    }


def _parameters() -> list[dict[str, Any]]:
    """The parameters of all commands, each name once."""
    found: dict[str, dict[str, argparse.Action]] = {}
    for task in TASKS.values():
        for action in make_parser(task).flags.values():
            if action.dest not in _LEFT_OUT:
                found.setdefault(action.dest, {})[task.command] = action
    return [_parameter(actions) for actions in found.values()]


def _parameter(actions: Mapping[str, argparse.Action]) -> dict[str, Any]:
    """`actions`: the parameter's flag of each command that takes it."""
    action = next(iter(actions.values()))
    optional = {} if action.dest in _REQUIRED else {"isOptional": True}
    return {
        "name": action.dest,
        "label": action.dest.replace("_", " "),
        "helpText": (action.help or "") if action.dest in _REQUIRED else _help(actions),
        **optional,
        "regexes": [f"^{_values(action)}$"],
    }


def _help(actions: Mapping[str, argparse.Action]) -> str:
    """The flag's help; where commands differ, with each text the commands that have it."""
    commands: dict[str, list[str]] = {}
    for command, action in actions.items():
        commands.setdefault((action.help or "").replace("%%", "%"), []).append(command)
    if len(commands) == 1:
        return next(iter(commands))
    return " ".join(f"With {', '.join(names)}: {text}" for text, names in commands.items())


def _values(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "(true|false)"
    if action.choices:
        return f"({'|'.join(map(str, action.choices))})"
    if action.dest in _TEXT:
        return _TEXT[action.dest]
    if action.type in NUMBER_TYPES:
        one = _INTEGER if action.type is int else _NUMBER
        return f"{one}( {one})*" if action.nargs else one
    if action.nargs:
        return r"(\[.+\]|[^[].*)"
    assert action.type not in (None, str), f"--{action.dest} is text: say in _TEXT what it takes"
    return r"\{.*\}"


if __name__ == "__main__":
    print(json.dumps(metadata(), indent=2, ensure_ascii=False))

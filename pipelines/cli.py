"""The `millrace` command. Each subcommand is imported when it is called: `--help` and `ps` need no Beam."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

_HELP = """\
usage: millrace COMMAND …

Millions of prompts through a language model: an Apache Beam pipeline with its own engine.

commands:
  run           complete the prompts of files (millrace run --help)
  score         score given continuations of the prompts of files
  embed         turn the prompts of files into vectors
  show PLACE    the row at a place that an id or a dead letter names, such as prompts.jsonl@1234
  ps [--json]   what runs on this machine: models, jobs, processes
  stop [MODEL]  end a model's engine, or everything

  --version     print the version
  --help        print this
"""


def main() -> None:
    """The console script: run the command line's command and end the process with its status."""
    from pipelines.edge import at_the_edge, leave

    leave(at_the_edge(lambda: dispatch(sys.argv[1:])))


def dispatch(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"millrace {version('millrace')}")
        return 0
    command = _COMMANDS.get(arguments[0])
    return command(arguments[1:]) if command else _unknown(arguments[0])


def _run(arguments: Sequence[str]) -> int:
    from pipelines.generate import main as generate

    return generate(arguments)


def _score(arguments: Sequence[str]) -> int:
    from pipelines.score import main as score

    return score(arguments)


def _embed(arguments: Sequence[str]) -> int:
    from pipelines.embed import main as embed

    return embed(arguments)


def _show(arguments: Sequence[str]) -> int:
    from pipelines.show import main as show

    return show(arguments)


def _ps(arguments: Sequence[str]) -> int:
    from pipelines.processes import ps

    return ps(arguments)


def _stop(arguments: Sequence[str]) -> int:
    from pipelines.processes import stop

    return stop(arguments)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "score": _score,
    "embed": _embed,
    "show": _show,
    "ps": _ps,
    "stop": _stop,
}


def _unknown(command: str) -> int:
    near = difflib.get_close_matches(command, _COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"takes {', '.join(_COMMANDS)}"
    print(f"millrace: unknown command {command!r}: {hint}", file=sys.stderr)
    return 2

"""The `millrace` command. Each subcommand is imported when it is called: `--help` and `ps` need no Beam."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import millrace

_HELP = """\
usage: millrace COMMAND …

Millions of prompts through a language model: an Apache Beam pipeline with its own engine.

commands:
  run           complete the prompts of files (millrace run --help)
  score         score given continuations of the prompts of files
  embed         turn the prompts of files into vectors
  extract       find in documents what a schema asks for, as rows of its types
  classify      give documents labels, and a probability to each
  plan          estimate workers, hours and money of a job
  yaml FILE     run a pipeline in Apache Beam's YAML that uses Generate, Score, Embed, Extract or Classify
  expansion     serve these transforms to Beam pipelines in Java and other languages
  show PLACE    the row at a place that an id or a dead letter names, such as prompts.jsonl@1234
  ps [--json]   what runs on this machine: models, jobs, processes
  stop [MODEL]  end a model's engine, or everything
  worker-pool   start worker processes when a Beam runner asks for them

  --version     print the version
  --help        print this
"""


def main() -> None:
    """The console script: run the command line's command and end the process with its status."""
    from .edge import at_the_edge, leave

    leave(at_the_edge(lambda: dispatch(sys.argv[1:])))


def dispatch(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"millrace {millrace.__version__}")
        return 0
    command = _COMMANDS.get(arguments[0])
    return command(arguments[1:]) if command else _unknown(arguments[0])


def _run(arguments: Sequence[str]) -> int:
    from .commands.generate import main as generate

    return generate(arguments)


def _score(arguments: Sequence[str]) -> int:
    from .commands.score import main as score

    return score(arguments)


def _embed(arguments: Sequence[str]) -> int:
    from .commands.embed import main as embed

    return embed(arguments)


def _extract(arguments: Sequence[str]) -> int:
    from .commands.extract import main as extract

    return extract(arguments)


def _classify(arguments: Sequence[str]) -> int:
    from .commands.classify import main as classify

    return classify(arguments)


def _plan(arguments: Sequence[str]) -> int:
    from .plan.command import main as plan

    return plan(arguments)


def _yaml(arguments: Sequence[str]) -> int:
    from .commands.yaml_job import main as yaml

    return yaml(arguments)


def _expansion(arguments: Sequence[str]) -> int:
    from .commands.expansion import main as expansion

    return expansion(arguments)


def _show(arguments: Sequence[str]) -> int:
    from .commands.show import main as show

    return show(arguments)


def _ps(arguments: Sequence[str]) -> int:
    from .commands.processes import ps

    return ps(arguments)


def _stop(arguments: Sequence[str]) -> int:
    from .commands.processes import stop

    return stop(arguments)


def _worker_pool(arguments: Sequence[str]) -> int:
    from .runners.worker_pool import main as worker_pool

    return worker_pool(arguments)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "score": _score,
    "embed": _embed,
    "extract": _extract,
    "classify": _classify,
    "plan": _plan,
    "yaml": _yaml,
    "expansion": _expansion,
    "show": _show,
    "ps": _ps,
    "stop": _stop,
    "worker-pool": _worker_pool,
}


def _unknown(command: str) -> int:
    from millrace.model_manager.wire.conversion import nearest

    near = nearest(command, _COMMANDS)
    hint = f"did you mean {near}?" if near else f"takes {', '.join(_COMMANDS)}"
    print(f"millrace: unknown command {command!r}: {hint}", file=sys.stderr)
    return 2

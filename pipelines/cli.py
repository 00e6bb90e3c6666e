"""The `millrace` command. Each subcommand is imported when it is called: `--help` and `ps` need no Beam."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module

import millrace
from millrace.model_manager.wire.imports import importing

from .edge import at_the_edge, leave
from .interrupts import ended_by_interrupt
from .runners.beam_import import without_unused_clients

_HELP = """\
usage: millrace COMMAND …

Millions of prompts through a language model: an Apache Beam pipeline with its own engine.

commands:
  run           complete the prompts of files (millrace run --help)
  score         score given continuations of the prompts of files
  embed         turn the prompts of files into vectors
  extract       find in documents what a schema asks for, as rows of its types
  classify      give documents labels, and a probability to each
  serve         answer OpenAI's API over HTTP, with the engine that jobs share
  plan          estimate workers, hours and money of a job
  yaml FILE     run a pipeline in Apache Beam's YAML that uses Generate, Score, Embed, Extract or Classify
  expansion     serve these transforms to Beam pipelines in Java and other languages
  view OUTPUT   look at the rows of an output in a browser
  show PLACE    the row at a place that an id or a dead letter names, such as prompts.jsonl@1234
  engines       the engines that --backend names; engines install NAME sets one up
  ps [--json]   what runs on this machine: models, jobs, processes
  top           the same as a live picture in the terminal; top --web as a page in a browser
  stop [MODEL]  end a model's engine, or everything
  metrics       serve metrics of this machine to Prometheus
  manager       run models for jobs in other containers; manager --make_key PATH makes the key that they share
  worker-pool   start worker processes when a Beam runner asks for them

  --version     print the version
  --help        print this
"""


def main() -> None:
    """Run the command line's command and end the process with its status."""
    leave(at_the_edge(lambda: dispatch(sys.argv[1:])))


def dispatch(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"millrace {millrace.__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        return _unknown(arguments[0])
    module, _, name = COMMANDS[arguments[0]].partition(":")
    is_task = module == _TASKS
    if is_task and len(arguments) == 1:
        return _without_input()
    with ended_by_interrupt(), importing(), without_unused_clients(arguments) if is_task else nullcontext():
        command: Callable[[Sequence[str]], int] = getattr(import_module(f".{module}", __package__), name)
    return command(arguments[1:])


_TASKS = "commands.job_commands"
"""The module of the commands that run a job."""
COMMANDS = {
    "run": f"{_TASKS}:generate",
    "score": f"{_TASKS}:score",
    "embed": f"{_TASKS}:embed",
    "extract": f"{_TASKS}:extract",
    "classify": f"{_TASKS}:classify",
    "serve": "commands.serve:main",
    "plan": "plan.command:main",
    "yaml": "commands.yaml_job:main",
    "expansion": "commands.expansion:main",
    "view": "commands.view:main",
    "show": "commands.show:main",
    "engines": "commands.engines:main",
    "ps": "commands.processes:ps",
    "top": "commands.top:main",
    "stop": "commands.processes:stop",
    "metrics": "commands.metrics:main",
    "manager": "commands.manager:main",
    "worker-pool": "runners.worker_pool:main",
}
"""The function that runs each command, by its module."""


def _without_input() -> int:
    """What the parser of the flags would say, without the seconds that Beam's import takes."""
    from .flags.parser import NO_INPUT

    print(f"millrace: {NO_INPUT}", file=sys.stderr)
    return 2


def _unknown(command: str) -> int:
    from millrace.model_manager.wire.conversion import did_you_mean, nearest

    hint = did_you_mean(nearest(command, [*COMMANDS, "--version", "--help"]), f"takes {', '.join(COMMANDS)}")
    print(f"millrace: unknown command {command!r}{hint}", file=sys.stderr)
    return 2

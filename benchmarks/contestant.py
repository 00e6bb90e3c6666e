"""One contestant's process: loads, says so, then runs the workload for each line of its input: all of it, or a bit.

python -m benchmarks.contestant ENGINE FOLDER SHAPE WORKLOAD DTYPE

Runs in the peer's environment, so it imports the standard library and this package's light modules alone.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from benchmarks.command_line import command_line
from benchmarks.contenders import CONTENDERS, DTYPES
from benchmarks.side_process import private_stdout
from benchmarks.sides import KnowsMemory, Prepares, Side, Unsupported
from benchmarks.workload import SHAPES, VOCAB, WORKLOADS, Item, make

WARM_UP_ITEMS = 8


def main() -> None:
    """Load the side that the command line names and run it on demand until the input ends."""
    parser = command_line("contestant", __doc__)
    for argument, choices in (("engine", CONTENDERS), ("folder", None), ("shape", SHAPES), ("workload", WORKLOADS)):
        parser.add_argument(argument, choices=choices)
    parser.add_argument("dtype", choices=DTYPES)
    asked = parser.parse_args()
    answers = private_stdout()
    contender = CONTENDERS[asked.engine]
    side = contender.make()
    started = time.perf_counter()
    try:
        side.load(Path(asked.folder), asked.dtype)
    except Unsupported as reason:
        _answer(answers, unsupported=str(reason))
        return
    loaded = time.perf_counter() - started
    _answer(answers, load_s=loaded, versions={name: version(name) for name in contender.distributions})
    items = make(asked.workload, VOCAB[asked.shape])
    portions = {
        "first token": [replace(items[0], num_output=1)],
        "warm-up": items[:WARM_UP_ITEMS],
        "run": items,
    }
    for line in sys.stdin:
        _answer(answers, **_timed(side, portions[line.strip()]))
    del side  # CTranslate2's threads have to end before the interpreter does


def _timed(side: Side, items: list[Item]) -> dict[str, Any]:
    if isinstance(side, Prepares):
        side.prepare(items)
    started = time.perf_counter()
    counts = side.run(items)
    seconds = time.perf_counter() - started
    wanted = [item.num_output for item in items]
    if counts != wanted:
        raise SystemExit(f"generated {sum(counts)} tokens where the workload asks for {sum(wanted)}")
    memory = side.memory() if isinstance(side, KnowsMemory) else {}
    return {"tokens": sum(counts), "seconds": seconds, "memory": memory}


def _answer(answers: IO[str], **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    main()

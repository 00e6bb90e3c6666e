"""One contestant's process: loads, says so, then runs the workload for each line of its input: all of it, or a bit.

python -m benchmarks.contestant ENGINE CHECKPOINT WORKLOAD DTYPE
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.sides import ENGINE_SIDES, Side
from benchmarks.workload import VOCAB, Item, make

WARM_UP_ITEMS = 8
"""What is run first, and not counted."""


def main() -> None:
    """Load the side that the command line names and run it on demand until the input ends."""
    name, folder, workload, dtype = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    answers = _private_stdout()
    side = _side(name)
    started = time.perf_counter()
    side.load(folder, dtype)
    _answer(answers, load_s=time.perf_counter() - started)
    items = make(workload, VOCAB[folder.name])
    for line in sys.stdin:
        _answer(answers, **_timed(side, items[:WARM_UP_ITEMS] if line.strip() == "warm-up" else items))


def _side(name: str) -> Side:
    if name in ENGINE_SIDES:
        return ENGINE_SIDES[name]()
    from benchmarks.beam_sides import PIPELINE_SIDES  # Beam's memory is not the engine's

    return PIPELINE_SIDES[name]()


def _timed(side: Side, items: list[Item]) -> dict[str, float]:
    started = time.perf_counter()
    counts = side.run(items)
    seconds = time.perf_counter() - started
    wanted = [item.num_output for item in items]
    if counts != wanted:
        raise SystemExit(f"generated {sum(counts)} tokens where the workload asks for {sum(wanted)}")
    return {"tokens": sum(counts), "seconds": seconds, "peak_rss_mb": _peak_rss_mb()}


def _peak_rss_mb() -> float:
    """Peak resident memory of this process, plus what the manager's and engine's processes hold now."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return own + sum(process.memory_info().rss for process in _millrace_processes()) / 2**20


def _millrace_processes() -> Iterator[psutil.Process]:
    runtime = os.environ["MILLRACE_RUNTIME_DIR"]
    for process in psutil.process_iter(["environ", "cmdline"]):
        arguments = process.info["cmdline"] or []
        mine = (process.info["environ"] or {}).get("MILLRACE_RUNTIME_DIR") == runtime
        if mine and any(argument.startswith("model_manager.") for argument in arguments):
            yield process


def _private_stdout() -> IO[str]:
    """The real standard output, for answers; what libraries print goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def _answer(answers: IO[str], **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    main()

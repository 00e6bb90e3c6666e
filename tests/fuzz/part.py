"""One part of fuzzing, in a process of its own: what crashes, hangs or takes too much memory ends this process alone.

    python -m tests.fuzz.part TARGET FOLDER SECONDS SEED

FOLDER holds the inputs so far, and gets those that reach new code. Atheris counts what is reached, in the product's
Python code (https://github.com/google/atheris); its folder is on PYTHONPATH. An input that is a defect is written to
FOLDER-defects, and the process ends with a status other than 0.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fuzz.target import Defect, Target, target

LONGEST_INPUT = 20_000
_COMPILED = ("model_manager/engine/cpu", "model_manager/engine/sampling")
"""Numba compiles functions of these folders, and takes no counters in them."""
_SLOWER = 8
"""Times that the clock on the wall may pass processor time, on a machine that does other things too."""


def main(name: str, folder: Path, seconds: int, seed: int) -> None:
    """Fuzz; returns never."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["millrace"], exclude=_compiled()):
        chosen = target(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    defects = Path(f"{folder}-defects")
    defects.mkdir(parents=True, exist_ok=True)
    flags = {
        "max_total_time": seconds,
        "runs": chosen.inputs,
        "max_len": LONGEST_INPUT,
        "timeout": int(chosen.seconds * _SLOWER),
        "rss_limit_mb": chosen.memory,
        "seed": seed,
        "print_final_stats": 1,
        "artifact_prefix": f"{defects}/",
    }
    command = [sys.argv[0], *(f"-{flag}={value}" for flag, value in flags.items()), str(folder)]

    def changed(data: bytes, most: int, seed: int) -> bytes:
        source = random.Random(seed)
        if source.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return chosen.mutate(data, source)[:most]

    atheris.Setup(command, lambda data: examine(chosen, data), custom_mutator=changed)
    atheris.Fuzz()


def _compiled() -> list[str]:
    root = Path(__file__).parents[2]
    files = [file.relative_to(root) for folder in _COMPILED for file in (root / folder).rglob("*.py")]
    return [".".join(("millrace", *file.with_suffix("").parts)) for file in files]


def examine(chosen: Target, data: bytes) -> None:
    """Give an input to the product; raises Defect if that takes too long."""
    started = time.process_time()
    chosen.run(data)
    took = time.process_time() - started
    if took > chosen.seconds:
        raise Defect(f"took {took:.1f} s of processor time, and {chosen.seconds:g} s are the most")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

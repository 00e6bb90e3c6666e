"""Faults in the processes of a job, put in by Python's start: CHAOS_FAULT names one, CHAOS_SEED draws its moments.

`gpu-error` and `nan-logits` stand at the seams of the inference process (engine/interface.py); `clock` is the time of
day in every process, as far as Python tells it: it goes an hour ahead or back every few seconds.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

_ENGINE = "millrace.model_manager.engine.process"
_STEPS_PER_ERROR = 200
_STEPS_PER_NAN = 10
_SECONDS_PER_JUMP = 3.0
_JUMP = 3600.0


def install() -> None:
    """Put in the fault that the environment names, if it is this process's."""
    fault, seed = os.environ.get("CHAOS_FAULT"), os.environ.get("CHAOS_SEED", "1")
    rnd = random.Random(f"{seed} {os.getpid()}")
    if fault == "clock":
        _jumping_clock(rnd)
    elif _ENGINE in sys.orig_argv and fault in ("gpu-error", "nan-logits"):
        (_gpu_errors if fault == "gpu-error" else _nan_logits)(rnd)


def _jumping_clock(rnd: random.Random) -> None:
    now, since = time.time, time.monotonic
    began, side = since(), rnd.choice((-1, 1))
    time.time = lambda: now() + side * _JUMP * (int((since() - began) / _SECONDS_PER_JUMP) % 2)


def _gpu_errors(rnd: random.Random) -> None:
    from millrace.model_manager.engine.engine import LLMEngine

    def fails() -> None:
        if rnd.random() < 1 / _STEPS_PER_ERROR:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    _before(LLMEngine, "step", fails)


def _before(owner: type, name: str, first: Callable[[], None]) -> None:
    plain = getattr(owner, name)

    def with_fault(self: Any, *arguments: Any) -> Any:
        first()
        return plain(self, *arguments)

    setattr(owner, name, with_fault)


def _nan_logits(rnd: random.Random) -> None:
    import torch

    from millrace.model_manager.engine.cpu.compiled_runner import CompiledRunner

    execute: Any = CompiledRunner.execute

    def with_fault(self: Any, step: Any) -> Any:
        output = execute(self, step)
        if output.logits is not None and len(output.logits) and rnd.random() < 1 / _STEPS_PER_NAN:
            with torch.inference_mode():
                output.logits[rnd.randrange(len(output.logits))] = float("nan")
        return output

    CompiledRunner.execute = with_fault  # type: ignore[method-assign]

"""Loads of a small model, many after each other, for a process beside a test's.

Imports no tests and no model code of transformers: that takes longer than the loads.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from millrace.model_manager.engine.interface import StepInput
from millrace.model_manager.engine.loading import kept_weights
from millrace.model_manager.engine.loading.checkpoint import read_checkpoint
from millrace.model_manager.engine.loading.kept_passes import KeptPass
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.loading.placement import Placement
from millrace.model_manager.wire.config import ModelConfig


def config_of(**settings: Any) -> ModelConfig:
    return ModelConfig(model="org/small", kv_cache_gib=0.01, num_threads=1, **settings)


def pass_of(folder: Path, **settings: Any) -> KeptPass:
    return KeptPass(Placement.choose(config_of(**settings), read_checkpoint(folder)), "compiled")


def loaded(folder: Path, **settings: Any) -> Any:
    return load_model(config_of(**settings), folder).runner


def logits_of(runner: Any) -> torch.Tensor:
    logits: torch.Tensor = runner.execute(StepInput.of_first_tokens(9)).logits
    return logits.clone()


def packed_files(cache: Path) -> list[Path]:
    return sorted((cache / "packed").glob("*"))


def in_two_processes(work: Callable[[Path, Event], None], folder: Path) -> None:
    """Do it here and in a new process, both at the same time."""
    starting = multiprocessing.get_context("spawn")
    ready = starting.Event()
    process = starting.Process(target=work, args=(folder, ready))
    process.start()
    assert ready.wait(300)
    work(folder, ready)
    process.join()
    assert process.exitcode == 0


def keep_often(folder: Path, ready: Event) -> None:
    """Keep the model's pass, which is found each time."""
    ready.set()
    for _ in range(50):
        pass_of(folder).keep()
        assert pass_of(folder).is_kept()


def load_often(folder: Path, ready: Event) -> None:
    """Load the model, whose packed weights are kept though they are small, and removed after every second load."""
    unchecked = mock.patch("millrace.model_manager.engine.loading.plan_check.disagreement", return_value=None)
    with unchecked, mock.patch.object(kept_weights, "_LEAST_BYTES", 0):
        ready.set()
        for at in range(10):
            logits_of(loaded(folder))
            if at % 2:
                for file in packed_files(Path(os.environ["MILLRACE_CACHE_DIR"])):
                    if not file.name.endswith(".unfinished"):
                        file.unlink(missing_ok=True)
        loaded(folder)

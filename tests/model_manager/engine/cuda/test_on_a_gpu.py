"""What only a GPU can show: the kernels as compiled, captured graphs, steps that run ahead, against a CPU's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.model_manager.engine import cuda_checks, layer_checks, triton_checks
from tests.model_manager.engine.tested_models import qwen3

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
    reason="takes a CUDA device of compute capability 8.0 or more",
)


@pytest.mark.parametrize("check", triton_checks.ON_GPUS.values(), ids=triton_checks.ON_GPUS)
def test_attention_computes_what_the_gathering_one_does(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("check", layer_checks.CHECKS.values(), ids=layer_checks.CHECKS)
def test_small_layers_compute_what_transformers_does(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("rounded", [None, torch.int8], ids=["full", "int8"])
def test_a_model_generates_what_it_does_on_a_cpu(rounded: torch.dtype | None) -> None:
    """Greedy and drawn, from captured graphs, running ahead."""
    runner: Any = cuda_checks.runner_on(torch.device("cuda"), qwen3(), rounded)
    assert sorted(runner._graphs) == [1, 2, 4]
    assert cuda_checks.answers(runner) == cuda_checks.answers(cuda_checks.plain_runner(qwen3(), rounded))


def test_launching_a_step_and_sampling_from_it_waits_for_nothing() -> None:
    """CUDA names every call that waits; launching, sampling and placing make none once they are warm."""
    runner: Any = cuda_checks.runner_on(torch.device("cuda"), qwen3(), None)
    cuda_checks.answers(runner)
    torch.cuda.set_sync_debug_mode("error")
    try:
        cuda_checks.answers(runner)
    finally:
        torch.cuda.set_sync_debug_mode("default")

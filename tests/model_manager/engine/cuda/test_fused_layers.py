"""Small layers as one kernel each: what they compute, in the interpreter; and that they compile."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.engine.cuda import layer_kernels
from tests.model_manager.engine.layer_checks import CHECKS
from tests.model_manager.engine.triton_tools import compiled, interpreted


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return interpreted("layer_checks", CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_in_the_interpreter(outcomes: dict[str, str], check: str) -> None:
    assert not outcomes[check], outcomes[check]


def _arguments(pointers: str, numbers: str) -> dict[str, str]:
    return dict.fromkeys(pointers.split(), "*bf16") | dict.fromkeys(numbers.split(), "i32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "arguments", "constants"),
    [
        (
            layer_kernels.norm,
            _arguments("states weight output", "num_rows outer_stride inner_stride") | {"epsilon": "fp32"},
            {"INNER": 1, "DIM": 8192, "DIM_PADDED": 8192, "ROWS": 1, "PLUS_ONE": False},
        ),
        (
            layer_kernels.rotate,
            _arguments("query key cos sin rotated_query rotated_key",
                       "query_stride query_head_stride key_stride key_head_stride"),
            {"HEADS": 64, "KV_HEADS": 8, "HEADS_PADDED": 64, "HALF": 64, "HALF_PADDED": 64},
        ),
        (
            layer_kernels.gate,
            _arguments("gates values output", "gate_stride value_stride"),
            {"DIM": 3072, "BLOCK": 1024, "GELU": True},
        ),
    ],
    ids=["norm", "rotate", "gate"],
)  # fmt: skip
def test_they_compile_without_spilling(kernel: Any, arguments: dict[str, str], constants: dict[str, Any]) -> None:
    _, stack, _ = compiled(kernel, arguments, constants, capability=80)
    assert stack == 0

"""Triton's kernels: what they compute, in the interpreter; and that they compile for the GPUs they are meant for."""

from __future__ import annotations

import pytest
import torch

from millrace.model_manager.engine.cuda import triton_kernels
from millrace.model_manager.engine.cuda.step_buffer import StepBuffer
from millrace.model_manager.engine.cuda.triton_attention import TritonAttention, supports
from millrace.model_manager.engine.paged_attention import CacheShape
from tests.model_manager.engine.triton_checks import CHECKS, QUICK
from tests.model_manager.engine.triton_tools import compiled, interpreted

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@pytest.fixture(scope="module")
def quick() -> dict[str, str]:
    return interpreted("triton_checks", QUICK)


@pytest.fixture(scope="module")
def others() -> dict[str, str]:
    return interpreted("triton_checks", [name for name in CHECKS if name not in QUICK])


@pytest.mark.parametrize("check", QUICK)
def test_in_the_interpreter(quick: dict[str, str], check: str) -> None:
    assert not quick[check], quick[check]


@pytest.mark.slow
@pytest.mark.parametrize("check", [name for name in CHECKS if name not in QUICK])
def test_in_the_interpreter_at_length(others: dict[str, str], check: str) -> None:
    assert not others[check], others[check]


@pytest.mark.parametrize("rounded", [None, torch.int8], ids=["full", "int8"])
def test_decoding_compiles_for_a_gpu_with_several_programs_an_sm(rounded: torch.dtype | None) -> None:
    registers, stack, shared = _compile_attend("bf16", rows=16, splits=1, rounded=rounded)
    assert stack == 0
    assert 4 * 128 * registers <= 65536
    assert 4 * shared <= 227 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(("rows", "splits"), [(16, 1), (16, 8), (64, 1)])
@pytest.mark.parametrize("rounded", [None, torch.int8], ids=["full", "int8"])
def test_bfloat16_compiles_for_every_gpu_without_spilling(
    capability: int, rows: int, splits: int, rounded: torch.dtype | None
) -> None:
    _, stack, shared = _compile_attend("bf16", rows=rows, splits=splits, capability=capability, rounded=rounded)
    assert stack == 0
    assert shared <= 99 * 1024, "more than the smallest of these GPUs gives to a program"


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "dim"), [("fp32", 128), ("fp32", 256), ("bf16", 256), ("fp16", 64)])
def test_wide_tiles_of_other_formats_and_heads_fit_a_program(dtype: str, dim: int) -> None:
    rows = _attention(dim, _FORMATS[dtype]).wide_rows
    _, _, shared = _compile_attend(dtype, rows=rows, splits=1, dim=dim, capability=80)
    assert shared <= 99 * 1024


@pytest.mark.slow
def test_storing_and_joining_compile() -> None:
    sizes = {"KV_HEADS": 8, "DIM": 128, "DIM_PADDED": 128}
    pointers = dict.fromkeys(("keys", "values", "cache"), "*bf16") | {"scales": "*fp32", "slots": "*i32"}
    strides = {"key_stride": "i32", "value_stride": "i32"}
    for rounded, cache in ((False, "*bf16"), (True, "*i8")):
        constants = sizes | {"HEADS_PADDED": 8, "BLOCK_SIZE": 16, "ROUNDED": rounded}
        compiled(triton_kernels.store, pointers | strides | {"cache": cache}, constants)
    parts = {"output": "*bf16", "tiles": "*i32", "part_outputs": "*fp32", "part_stats": "*fp32"}
    compiled(triton_kernels.join, parts, sizes | {"GROUP": 4, "ROWS": 16, "SPLITS": 8})


def test_few_sequences_are_split_among_programs_and_many_are_not() -> None:
    splits = [_attention().num_splits(tiles) for tiles in (1, 2, 4, 16, 64, 256)]
    assert splits == [32, 32, 16, 4, 1, 1]


def test_sizes_that_the_kernels_do_not_take_are_known() -> None:
    assert supports(_shape())
    assert not supports(_shape(head_dim=36))
    assert not supports(_shape(head_dim=512))
    assert not supports(_shape(dtype=torch.float64))
    assert supports(_shape(rounded=torch.int8))
    assert not supports(_shape(rounded=torch.float8_e4m3fn))


def _shape(head_dim: int = 128, dtype: torch.dtype = torch.bfloat16, rounded: torch.dtype | None = None) -> CacheShape:
    return CacheShape(1, 32, 8, head_dim, num_blocks=1024, block_size=16, dtype=dtype, rounded=rounded)


def _attention(
    head_dim: int = 128, dtype: torch.dtype = torch.bfloat16, rounded: torch.dtype | None = None
) -> TritonAttention:
    buffer = StepBuffer(torch.device("cpu"), max_tokens=8, max_seqs=8, max_blocks=8)
    return TritonAttention(_shape(head_dim, dtype, rounded), torch.device("cpu"), buffer, num_sms=132)


def _compile_attend(
    dtype: str, *, rows: int, splits: int, dim: int = 128, capability: int = 90, rounded: torch.dtype | None = None
) -> tuple[int, int, int]:
    """(registers, bytes of stack, bytes of shared memory) of the launch that TritonAttention makes."""
    launch = _attention(dim, _FORMATS[dtype], rounded).launch(rows)
    pointers = dict.fromkeys(("query", "output"), f"*{dtype}") | {"cache": "*i8" if rounded else f"*{dtype}"}
    pointers |= dict.fromkeys(("tiles", "positions", "tables", "table_stride"), "*i32")
    pointers |= dict.fromkeys(("scales", "sinks", "part_outputs", "part_stats"), "*fp32")
    numbers = {"query_stride": "i32", "scale": "fp32", "softcap": "fp32", "window": "i32"}
    constants = {name: value for name, value in launch.items() if name.isupper()}
    options = {name: value for name, value in launch.items() if not name.isupper()}
    constants |= {"SPLITS": splits, "CAPPED": False, "WINDOWED": True, "HAS_SINKS": True}
    return compiled(triton_kernels.attend, pointers | numbers, constants, capability, **options)

"""Stored layers, packed here by hand as each tool does, are worth what their definition says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from millrace.model_manager.engine.quantization.rounding import RoundedGroups, RoundedRows
from millrace.model_manager.engine.quantization.stored_formats import FORMATS, OrderedGroups, Weight, refusal, worth

_OUT, _IN, _GROUP = 48, 128, 32


def _steps(bits: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(bits + len(shape))
    return torch.randint(0, 2**bits, shape, generator=generator)


def _scales(*shape: int) -> torch.Tensor:
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(1)) + 0.5).half().float()


def int32_fields(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Packed along the last dimension into int32s, first value lowest."""
    fields = values.reshape(*values.shape[:-1], -1, 32 // bits).long() << torch.arange(0, 32, bits)
    return fields.sum(-1).to(torch.uint32).view(torch.int32)


def _unpack(method: str, parts: dict[str, torch.Tensor], **config: Any) -> Weight:
    assert any(mark in parts for mark in FORMATS[method].marks)
    return FORMATS[method].unpack(parts, config)


def gptq_parts(
    steps: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, bits: int, stored_less: int = 1
) -> dict[str, torch.Tensor]:
    """[out, in] steps with zeros and scales [out, groups] as GPTQ's first version stores them."""
    return {
        "qweight": int32_fields(steps, bits).t().contiguous(),
        "qzeros": int32_fields(((zeros - stored_less) % 2**bits).t().contiguous(), bits),
        "scales": scales.t().contiguous().half(),
        "g_idx": torch.arange(steps.shape[1], dtype=torch.int32) // (steps.shape[1] // scales.shape[1]),
    }


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("version", "stored_less"), [("gptq", 1), ("gptq_v2", 0)])
def test_gptq(bits: int, version: str, stored_less: int) -> None:
    steps, zeros, scales = _steps(bits, _OUT, _IN), _steps(bits, _OUT, _IN // _GROUP), _scales(_OUT, _IN // _GROUP)
    parts = gptq_parts(steps, zeros, scales, bits, stored_less)
    weight = _unpack("gptq", parts, bits=bits, checkpoint_format=version)
    each = [part.repeat_interleave(_GROUP, 1) for part in (zeros, scales)]
    torch.testing.assert_close(worth(weight), (steps - each[0]) * each[1])
    assert isinstance(weight, RoundedGroups) == (bits == 4)


def test_gptq_with_columns_in_the_order_of_their_importance() -> None:
    steps, zeros, scales = _steps(4, _OUT, _IN), _steps(4, _OUT, 4), _scales(_OUT, 4)
    groups = torch.arange(_IN)[torch.randperm(_IN, generator=torch.Generator().manual_seed(0))] // _GROUP
    weight = _unpack("gptq", gptq_parts(steps, zeros, scales, 4) | {"g_idx": groups.int()}, bits=4)
    assert isinstance(weight, OrderedGroups)
    torch.testing.assert_close(worth(weight), (steps - zeros[:, groups]) * scales[:, groups])
    torch.testing.assert_close(
        weight.groups.values(), ((steps - zeros[:, groups]) * scales[:, groups])[:, weight.order]
    )


def test_gptq_with_groups_of_whole_rows_gets_shorter_ones() -> None:
    steps, zeros, scales = _steps(4, _OUT, 256), _steps(4, _OUT, 1), _scales(_OUT, 1)
    weight = _unpack("gptq", gptq_parts(steps, zeros, scales, 4), bits=4)
    assert isinstance(weight, RoundedGroups)
    assert weight.group == 128
    torch.testing.assert_close(worth(weight), (steps - zeros) * scales)


def test_awq() -> None:
    steps, zeros, scales = _steps(4, _OUT, _IN), _steps(4, _OUT, 4), _scales(_OUT, 4)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    packed = [int32_fields(part.t().reshape(-1, _OUT // 8, 8)[..., order].flatten(1), 4) for part in (steps, zeros)]
    weight = _unpack("awq", {"qweight": packed[0], "qzeros": packed[1], "scales": scales.t().half()}, bits=4)
    assert isinstance(weight, RoundedGroups)
    torch.testing.assert_close(
        worth(weight), (steps - zeros.repeat_interleave(_GROUP, 1)) * scales.repeat_interleave(_GROUP, 1)
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("symmetric", [False, True])
def test_compressed_tensors_packed(bits: int, groups: int, symmetric: bool) -> None:
    steps, scales = _steps(bits, _OUT, _IN), _scales(_OUT, groups)
    zeros = torch.full((_OUT, groups), 2 ** (bits - 1)) if symmetric else _steps(bits, _OUT, groups)
    parts = {
        "weight_packed": int32_fields(steps, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([_OUT, _IN]),
    }
    if not symmetric:
        parts["weight_zero_point"] = int32_fields(zeros.t().contiguous(), bits).t().contiguous()
    weight = _unpack("compressed-tensors", parts)
    each = [part.repeat_interleave(_IN // groups, 1) for part in (zeros, scales)]
    torch.testing.assert_close(worth(weight), (steps - each[0]) * each[1])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("scales", [_scales(_OUT, 1), _scales(1), _scales(1)[0]])
def test_compressed_tensors_in_int8_and_fp8_by_row_or_by_tensor(dtype: torch.dtype, scales: torch.Tensor) -> None:
    steps = (_steps(6, _OUT, _IN) - 32).to(dtype)
    weight = _unpack("compressed-tensors", {"weight": steps, "weight_scale": scales})
    assert isinstance(weight, RoundedRows)
    torch.testing.assert_close(worth(weight), steps.float() * scales)


def test_compressed_tensors_in_int8_by_group_and_with_zeros() -> None:
    steps, zeros, scales = _steps(6, _OUT, _IN).to(torch.int8), _steps(3, _OUT, 4).to(torch.int8), _scales(_OUT, 4)
    weight = _unpack("compressed-tensors", {"weight": steps, "weight_scale": scales, "weight_zero_point": zeros})
    each = [part.repeat_interleave(_GROUP, 1) for part in (zeros, scales)]
    torch.testing.assert_close(worth(weight), (steps - each[0]) * each[1])


def test_bitsandbytes_in_int8() -> None:
    steps, largest = (_steps(7, _OUT, _IN) - 64).to(torch.int8), _scales(_OUT)
    weight = _unpack("bitsandbytes", {"weight": steps, "SCB": largest})
    assert isinstance(weight, RoundedRows)
    torch.testing.assert_close(worth(weight), steps * (largest / 127).unsqueeze(1))


def bitsandbytes_parts(codes: torch.Tensor, table: torch.Tensor, largest: torch.Tensor) -> dict[str, torch.Tensor]:
    """[out, in] codes of a table of 16, with the largest value of each 64."""
    pairs = codes.flatten().reshape(-1, 2)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(codes.shape)}
    return {
        "weight": (pairs[:, 0] * 16 + pairs[:, 1]).to(torch.uint8).unsqueeze(1),
        "weight.absmax": largest,
        "weight.quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }


def test_bitsandbytes_in_4_bits() -> None:
    codes, table, largest = _steps(4, _OUT, _IN), torch.linspace(-1, 1, 16) ** 3, _scales(_OUT * _IN // 64)
    weight = _unpack("bitsandbytes", bitsandbytes_parts(codes, table, largest))
    wanted = table[codes].reshape(-1, 64) * largest.unsqueeze(1)
    torch.testing.assert_close(weight, wanted.reshape(_OUT, _IN))


def test_bitsandbytes_in_4_bits_with_scales_in_8() -> None:
    codes, table, coded = _steps(4, 256, _IN), torch.linspace(-1, 1, 16) ** 3, _steps(8, 512)
    nested_table, nested_largest = torch.linspace(-1, 1, 256), _scales(2)
    parts = bitsandbytes_parts(codes, table, coded.to(torch.uint8))
    state = json.loads(bytes(parts["weight.quant_state.bitsandbytes__nf4"].tolist()))
    state |= {"nested_blocksize": 256, "nested_offset": 0.25, "nested_dtype": "float32"}
    parts |= {
        "weight.nested_absmax": nested_largest,
        "weight.nested_quant_map": nested_table,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    largest = nested_table[coded] * nested_largest.repeat_interleave(256) + 0.25
    wanted = (table[codes].reshape(-1, 64) * largest.unsqueeze(1)).reshape(256, _IN)
    torch.testing.assert_close(_unpack("bitsandbytes", parts), wanted)


@pytest.mark.parametrize(("out_features", "in_features"), [(256, 128), (192, 320), (100, 60)])
def test_fp8_in_blocks_of_which_the_last_are_cut_short(out_features: int, in_features: int) -> None:
    steps = (_steps(6, out_features, in_features) - 32).to(torch.float8_e4m3fn)
    scales = _scales(-(-out_features // 128), -(-in_features // 128))
    weight = _unpack("fp8", {"weight": steps, "weight_scale_inv": scales}, weight_block_size=[128, 128])
    each = scales.repeat_interleave(128, 0)[:out_features].repeat_interleave(128, 1)[:, :in_features]
    torch.testing.assert_close(worth(weight), steps.float() * each)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "hqq"}, "quantized by hqq are not read; takes gptq, awq"),
        ({"quant_method": "gptq", "bits": 3}, "gptq weights in 3 bits are not read; takes 2, 4 or 8"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "the layout gemv are not read; takes gemm"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format marlin-24 are not read"),
        ({"quant_method": "gptq", "bits": 4}, None),
        ({"quant_method": "awq", "bits": 4, "version": "GEMM"}, None),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, None),
        ({"quant_method": "fp8"}, None),
    ],
)
def test_what_is_not_read_is_refused_by_name(config: Mapping[str, Any], words: str | None) -> None:
    said = refusal(config)
    assert said is None if words is None else words in (said or "")

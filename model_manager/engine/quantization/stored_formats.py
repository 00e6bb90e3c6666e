"""Formats in which other tools store rounded weights in a checkpoint, unpacked into `rounding`'s values.

GPTQ (AutoGPTQ, GPTQModel), AWQ (AutoAWQ's gemm layout), compressed-tensors (llm-compressor: packed integers, int8,
fp8), bitsandbytes (int8, nf4, fp4) and fp8 in blocks (DeepSeek). No library of theirs is needed. Knows single layers:
the tensors that belong to one, by the end of their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .rounded_linear import INT4_GROUPS
from .rounding import RoundedGroups, RoundedRows

Parts = Mapping[str, torch.Tensor]
"""A layer's tensors by what follows its name."""


@dataclass(frozen=True)
class OrderedGroups:
    """4-bit groups whose columns belong to the input's columns `order` [in]."""

    groups: RoundedGroups
    order: torch.Tensor

    def values(self) -> torch.Tensor:
        """[out, in] float32, in the input's order."""
        values = self.groups.values()
        return torch.empty_like(values).index_copy_(1, self.order, values)


Weight = RoundedRows | RoundedGroups | OrderedGroups | torch.Tensor
"""[out, in]; a tensor where no format of ours holds what is stored exactly."""


@dataclass(frozen=True)
class StoredFormat:
    """One tool's way of storing a layer."""

    marks: tuple[str, ...]
    """A layer is stored so if it has one of these parts."""
    unpack: Callable[[Parts, Mapping[str, Any]], Weight]
    """Unpacks a layer's parts by the checkpoint's `quantization_config`; KeyError for a missing part."""


def worth(weight: Weight) -> torch.Tensor:
    """The weight's values, [out, in] in float."""
    return weight if isinstance(weight, torch.Tensor) else weight.values()


# ── GPTQ ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gptq(parts: Parts, config: Mapping[str, Any]) -> Weight:
    """GPTQ's parts: in 4 bits, qweight [in / 8, out] and qzeros [groups, out / 8]. Version 1 stores zeros less 1."""
    bits = int(config["bits"])
    steps = _unpack(parts["qweight"], bits, dim=0).t()
    zeros = _unpack(parts["qzeros"], bits, dim=1).t()[: steps.shape[0]]
    if config.get("checkpoint_format", "gptq") != "gptq_v2":
        zeros = (zeros + 1) & (2**bits - 1)
    return _grouped(bits, steps, parts["scales"].t(), zeros, parts.get("g_idx"))


# ── AWQ ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

_AWQ_FIELDS = [0, 4, 1, 5, 2, 6, 3, 7]
"""Which of the 8 fields of an int32 holds each of the 8 outputs."""


def _awq(parts: Parts, config: Mapping[str, Any]) -> Weight:
    """Qweight [in, out / 8] and qzeros [groups, out / 8], outputs interleaved."""
    steps, zeros = (_awq_unpack(parts[name]).t() for name in ("qweight", "qzeros"))
    return _grouped(int(config.get("bits", 4)), steps, parts["scales"].t(), zeros, None)


def _awq_unpack(packed: torch.Tensor) -> torch.Tensor:
    return _unpack(packed, 4, dim=1).reshape(packed.shape[0], -1, 8)[..., _AWQ_FIELDS].flatten(1)


# ── compressed-tensors ───────────────────────────────────────────────────────────────────────────────────────────────


_COMPRESSED = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "dense")


def _compressed(parts: Parts, _config: Mapping[str, Any]) -> Weight:
    """weight_packed [out, in / fields] with weight_shape, or weight [out, in] in int8 or fp8; and scales."""
    scales = parts["weight_scale"].float()
    scales = scales if scales.ndim == 2 else scales.reshape(-1, 1)
    zeros = parts.get("weight_zero_point")
    if "weight_packed" in parts:
        packed, (out_features, in_features) = parts["weight_packed"], parts["weight_shape"].tolist()
        bits = 32 // round(in_features / packed.shape[1])
        steps = _unpack(packed, bits, dim=1)[:, :in_features]
        middle = 2 ** (bits - 1)
        unpacked = torch.tensor(middle) if zeros is None else _unpack(zeros, bits, dim=0)[:out_features]
        return _grouped(bits, steps, scales, unpacked, parts.get("weight_g_idx"))
    weight = parts["weight"]
    if scales.shape[1] == 1 and (zeros is None or not zeros.any()):
        return RoundedRows(weight, scales.squeeze(1).expand(weight.shape[0]).contiguous())
    if zeros is not None:
        weight = weight.float() - zeros.float().repeat_interleave(weight.shape[1] // zeros.shape[1], 1)
    rows, columns = (-(-size // count) for size, count in zip(weight.shape, scales.shape, strict=True))
    return _times_blocks(weight, scales, rows, columns)


# ── bitsandbytes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _bitsandbytes(parts: Parts, _config: Mapping[str, Any]) -> Weight:
    """int8 with the largest value of each row, or 4-bit codes of a table with the largest value of each block."""
    if "SCB" in parts:
        return RoundedRows(parts["weight"], parts["SCB"].float() / 127)
    state = next(tensor for name, tensor in parts.items() if name.startswith("weight.quant_state."))
    about = json.loads(bytes(state.tolist()))
    largest = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        codes = parts["weight.nested_quant_map"].float()[largest.long()]
        blocks = parts["weight.nested_absmax"].float().repeat_interleave(about["nested_blocksize"])
        largest = codes * blocks[: len(codes)] + about["nested_offset"]
    bytes_ = parts["weight"].flatten().int()
    codes = torch.stack([bytes_ >> 4, bytes_ & 15], dim=-1).flatten()
    scales = largest.float().repeat_interleave(about["blocksize"])[: len(codes)]
    values: torch.Tensor = parts["weight.quant_map"].float()[codes] * scales
    return values[: torch.Size(about["shape"]).numel()].reshape(about["shape"])


# ── fp8 in blocks ────────────────────────────────────────────────────────────────────────────────────────────────────


def _fp8(parts: Parts, config: Mapping[str, Any]) -> Weight:
    """Weight [out, in] and a scale for each of its blocks, or for all of it."""
    weight, scales = parts["weight"], parts["weight_scale_inv"].float()
    if scales.numel() == 1:
        return RoundedRows(weight, scales.reshape(1).expand(weight.shape[0]).contiguous())
    return _times_blocks(weight, scales, *config["weight_block_size"])


FORMATS: dict[str, StoredFormat] = {
    "gptq": StoredFormat(("qweight",), _gptq),
    "awq": StoredFormat(("qweight",), _awq),
    "compressed-tensors": StoredFormat(("weight_packed", "weight_scale"), _compressed),
    "bitsandbytes": StoredFormat(("SCB", "weight.quant_map"), _bitsandbytes),
    "fp8": StoredFormat(("weight_scale_inv",), _fp8),
}
"""Formats by the `quant_method` that a config.json names."""


def refusal(config: Mapping[str, Any]) -> str | None:
    """Why a checkpoint with this `quantization_config` is not read; None if it is."""
    method = config.get("quant_method", "unnamed")
    if method not in FORMATS:
        return f"weights quantized by {method} are not read; takes {', '.join(FORMATS)} or unquantized weights"
    if method in ("gptq", "awq") and (bits := config.get("bits", 4)) not in ((2, 4, 8) if method == "gptq" else (4,)):
        return f"{method} weights in {bits} bits are not read; takes {'2, 4 or 8' if method == 'gptq' else 4}"
    if method == "awq" and (version := str(config.get("version", "gemm")).lower()) != "gemm":
        return f"awq weights in the layout {version} are not read; takes gemm"
    if method == "compressed-tensors":
        kinds = {config.get("format"), *(group.get("format") for group in (config.get("config_groups") or {}).values())}
        others = sorted(kinds - {None, *_COMPRESSED})
        if others:
            return f"compressed-tensors of the format {others[0]} are not read; takes {', '.join(_COMPRESSED)}"
    return None


def _grouped(
    bits: int, steps: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_of: torch.Tensor | None
) -> Weight:
    """(steps - zeros) * scales: steps [out, in], scales and zeros [out, groups]; `group_of` [in] if they are mixed."""
    steps, scales, zeros = steps.contiguous(), scales.float().contiguous(), zeros.to(torch.float32)
    out_features, in_features = steps.shape
    count = scales.shape[1]
    scales = scales.expand(out_features, count)
    in_a_row = torch.arange(in_features) // -(-in_features // count)
    group_of = in_a_row if group_of is None else group_of.long()
    if bits != 4 or in_features % count or (group_of.bincount(minlength=count) != in_features // count).any():
        zeros = zeros.expand(out_features, count)
        return (steps.float() - zeros[:, group_of]) * scales[:, group_of]
    middles = (8 - zeros) * scales
    if torch.equal(group_of, in_a_row):
        return _shortened(RoundedGroups(steps, scales, middles))
    order = group_of.argsort(stable=True)
    return OrderedGroups(_shortened(RoundedGroups(steps[:, order].contiguous(), scales, middles)), order)


def _shortened(groups: RoundedGroups) -> RoundedGroups:
    """Cut groups that are too long for any product, such as whole rows, into several with the same scale."""
    if groups.group <= INT4_GROUPS[-1]:
        return groups
    parts = groups.group // math.gcd(groups.group, INT4_GROUPS[-1])
    scales, middles = (part.repeat_interleave(parts, dim=1) for part in (groups.scales, groups.middles))
    return RoundedGroups(groups.steps, scales, middles)


def _times_blocks(weight: torch.Tensor, scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """[out, in] times the scale of its block of `rows` x `columns`; the last ones may be cut short."""
    each = scales.repeat_interleave(rows, 0)[: weight.shape[0]].repeat_interleave(columns, 1)[:, : weight.shape[1]]
    return weight.float() * each


def _unpack(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """uint8 fields of int32s, lowest bits first, spread along `dim`."""
    fields = (packed.int().unsqueeze(-1) >> torch.arange(0, 32, bits, dtype=torch.int32)) & (2**bits - 1)
    unpacked: torch.Tensor = fields.movedim(-1, dim + 1).flatten(dim, dim + 1).to(torch.uint8)
    return unpacked

"""Layers in few bits against the float product of what their weights are worth."""

from __future__ import annotations

import pytest
import torch

from millrace.model_manager.engine.quantization.rounded_linear import Fp8Linear, Int4Linear, Int8Linear, fits_int4
from millrace.model_manager.engine.quantization.rounding import round_groups, round_rows

_SIZES = [(48, 64), (16, 128), (64, 256)]
_ROWS = [(1,), (3, 5), (16,), (17,), (33,), (64,)]


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) * 1000 + shape[-1] + shape[0] * 7))


def _check(
    layer: torch.nn.Module, weight: torch.Tensor, rows: tuple[int, ...], bias: torch.Tensor | None, error: float
) -> None:
    """A product is off by no more than `error` of the size of its rows and columns."""
    for dtype in (torch.float32, torch.bfloat16):
        x = _random(*rows, weight.shape[1]).to(dtype)
        wanted = torch.nn.functional.linear(x.float(), weight, bias)
        got = layer(x)
        assert got.dtype == dtype
        assert got.shape == wanted.shape
        size = x.float().norm(dim=-1, keepdim=True) * weight.norm(dim=-1) + (0 if bias is None else bias.abs())
        allowed = error + (0.0 if dtype == torch.float32 else 2**-8)
        assert ((got.float() - wanted).abs() <= allowed * size).all()


@pytest.mark.parametrize("rows", _ROWS)
@pytest.mark.parametrize(("out_features", "in_features"), _SIZES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_int8_multiplies_rows_rounded_to_int8(
    out_features: int, in_features: int, rows: tuple[int, ...], has_bias: bool
) -> None:
    weight = round_rows(_random(out_features, in_features), torch.int8)
    bias = _random(out_features) if has_bias else None
    _check(Int8Linear(weight, bias), weight.values(), rows, bias, error=0.01)


@pytest.mark.parametrize("rows", _ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_fp8_multiplies_rows_rounded_to_fp8(rows: tuple[int, ...], has_bias: bool) -> None:
    """It uses torch's own product on a CPU, which takes the same arguments as a GPU's."""
    weight = round_rows(_random(48, 64), torch.float8_e4m3fn)
    bias = _random(48) if has_bias else None
    _check(Fp8Linear(weight, bias), weight.values(), rows, bias, error=0.03)


@pytest.mark.parametrize("rows", _ROWS)
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("out_features", "in_features"), [(48, 128), (16, 256)])
def test_int4_multiplies_in_bfloat16(out_features: int, in_features: int, group: int, rows: tuple[int, ...]) -> None:
    weight = round_groups(_random(out_features, in_features), group)
    bias = _random(out_features)
    _check(Int4Linear(weight, bias), weight.values(), rows, bias, error=0.004)


def test_int4_columns_may_come_in_another_order() -> None:
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    weight = round_groups(_random(32, 64), 32)
    in_place = torch.empty(32, 64)
    in_place[:, order] = weight.values()
    _check(Int4Linear(weight, None, order), in_place, (5,), None, error=0.004)


def test_an_input_that_is_not_finite_is_not_lost() -> None:
    x = torch.ones(3, 64)
    x[1, 7] = torch.nan
    weight = _random(16, 64)
    for layer in (Int8Linear(round_rows(weight, torch.int8), None), Int4Linear(round_groups(weight, 32), None)):
        out = layer(x)
        assert out[1].isnan().all()
        assert out[[0, 2]].isfinite().all()


def test_a_row_does_not_depend_on_its_company() -> None:
    x, weight = _random(40, 64), _random(48, 64)
    layers = (
        Int8Linear(round_rows(weight, torch.int8), None),
        Int4Linear(round_groups(weight, 32), None),
        Fp8Linear(round_rows(weight, torch.float8_e4m3fn), None),
    )
    for layer in layers:
        torch.testing.assert_close(layer(x)[7:8], layer(x[7:8]), atol=2e-2, rtol=1e-2)


def test_sizes_that_the_int4_product_does_not_take_are_known() -> None:
    assert fits_int4(16, 64, 32)
    assert not fits_int4(24, 64, 32)
    assert not fits_int4(16, 48, 32)
    assert not fits_int4(16, 64, 16)

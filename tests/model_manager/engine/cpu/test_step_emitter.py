"""Each kind of call of a step's program, against the same computed by torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from millrace.model_manager.engine.cpu import step_emitter
from millrace.model_manager.engine.cpu.matrix_ops import LANES, Epilogue, Format, Unit
from millrace.model_manager.engine.cpu.packed_matrix import pack
from millrace.model_manager.engine.cpu.row_ops import Norm
from millrace.model_manager.engine.cpu.step_emitter import Emitter, NormWeights, Rotation, Rows
from millrace.model_manager.engine.cpu.team import Team
from millrace.model_manager.engine.cpu.units import unit_of
from millrace.model_manager.engine.paged_attention import CacheShape

_DTYPES = {Format.FLOAT32: torch.float32, Format.BFLOAT16: torch.bfloat16, Format.INT8: torch.uint8}
_TOLERANCE = {Format.FLOAT32: 2e-6, Format.BFLOAT16: 1e-2, Format.INT8: 2e-2}
_EPILOGUES: dict[Epilogue, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Epilogue.STORE: lambda product, _there: product,
    Epilogue.RELU: lambda product, _there: product.relu(),
    Epilogue.GELU_TANH: lambda product, _there: functional.gelu(product, approximate="tanh"),
    Epilogue.ADD: lambda product, there: there + product,
}
_GATED: dict[Epilogue, Callable[[torch.Tensor], torch.Tensor]] = {
    Epilogue.SWIGLU: functional.silu,
    Epilogue.GEGLU_TANH: lambda gate: functional.gelu(gate, approximate="tanh"),
}

pytestmark = pytest.mark.skipif(unit_of(Format.FLOAT32, LANES) is None, reason="the processor lacks AVX2")


@pytest.fixture(params=[(1, None), (2, None), (2, Unit.AVX2)], ids=["one thread", "two threads", "AVX2"])
def emitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Emitter:
    """An emitter with this processor's fastest instructions, and one with those that nearly all processors have."""
    threads, unit = request.param
    if unit is not None:
        if all(unit_of(fmt, LANES) == unit for fmt in Format):
            pytest.skip("the processor has no faster ones")
        monkeypatch.setattr(step_emitter, "unit_of", lambda *_: unit)
    return Emitter(Team(threads))


def _filled(values: torch.Tensor, dtype: torch.dtype) -> Rows:
    """Rows of these values; what lies beyond them is not finite, and must not matter."""
    rows = Rows(len(values), values.shape[1], dtype, exact=True)
    if dtype.is_floating_point:
        rows.tensor.fill_(float("nan"))
    rows.tensor[: len(values)] = values.to(dtype)
    return rows


def _factors(emitter: Emitter, values: torch.Tensor, fmt: Format) -> Rows:
    """The left side of a product, in its format."""
    if fmt != Format.INT8:
        return _filled(values, _DTYPES[fmt])
    target = Rows(len(values), values.shape[1], torch.uint8, exact=True)
    return emitter.quantize(_filled(values, torch.float32), values.shape[1], target)


def _deviation(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("fmt", Format)
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 13, 16, 24, 61, 130, 300])
def test_products_of_any_number_of_rows(emitter: Emitter, fmt: Format, rows: int) -> None:
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, 64), torch.randn(200, 64), torch.randn(200)
    out = Rows(rows, 200, torch.float32)
    out.tensor.zero_()
    emitter.multiply(_factors(emitter, x, fmt), pack([weight], [bias], fmt), out, Epilogue.STORE)
    emitter.run(rows)
    assert _deviation(out.tensor[:rows, :200], x @ weight.T + bias) < _TOLERANCE[fmt]
    assert not out.tensor[:rows, 200:].any()
    assert not out.tensor[rows:].any()


@pytest.mark.parametrize("fmt", Format)
@pytest.mark.parametrize("inner", [16, 64, 80, 1024])
@pytest.mark.parametrize("epilogue", [Epilogue.STORE, Epilogue.SWIGLU])
def test_a_row_is_the_same_bits_whatever_its_company(
    emitter: Emitter, fmt: Format, inner: int, epilogue: Epilogue
) -> None:
    """80 is no whole number of the matrix unit's tiles in any format; 900 columns are 19 panels, so that up to 4 rows
    are computed in groups of panels and in single ones.
    """
    x, weights = torch.randn(300, inner), [torch.randn(900, inner) for _ in range(1 + (epilogue in _GATED))]
    matrix, factors = pack(weights, [None] * len(weights), fmt), _factors(emitter, x, fmt)
    out = Rows(300, 900, torch.float32)
    emitter.multiply(factors, matrix, out, epilogue)
    emitter.run(300)
    together = out.tensor[:300].clone()
    for rows in (1, 2, 4, 5, 7, 8, 9, 16, 17, 33, 129):
        out.tensor.zero_()
        emitter.run(rows)
        assert torch.equal(out.tensor[:rows], together[:rows]), rows
        assert not out.tensor[rows:].any(), rows


def _units_here(fmt: Format) -> list[Unit]:
    has = torch.cpu.get_capabilities()
    own = has.get({Format.INT8: "avx512_vnni", Format.BFLOAT16: "avx512_bf16", Format.FLOAT32: "avx512_f"}[fmt], False)
    widens = fmt == Format.BFLOAT16 and has.get("avx512_f", False)
    tiles = unit_of(fmt, 32) == Unit.TILES
    present = {Unit.AVX2: True, Unit.WIDENED: widens, Unit.AVX512: own, Unit.TILES: tiles}
    return [unit for unit in Unit if present[unit]]


@pytest.mark.parametrize("fmt", Format)
@pytest.mark.parametrize("rows", [1, 9, 40, 200])
def test_all_instructions_for_products_agree(fmt: Format, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """int8 is exact, and float32 adds in one order."""
    if unit_of(fmt, 32) == Unit.AVX2:
        pytest.skip("the processor lacks AVX-512 and AMX for this format")
    x, matrix = torch.randn(rows, 256), pack([torch.randn(96, 256)], [None], fmt)
    results = []
    for unit in _units_here(fmt):
        monkeypatch.setattr(step_emitter, "unit_of", lambda *_, unit=unit: unit)
        emitter, out = Emitter(Team(2)), Rows(rows, 96, torch.float32)
        emitter.multiply(_factors(emitter, x, fmt), matrix, out, Epilogue.STORE)
        emitter.run(rows)
        results.append(out.tensor[:rows].clone())
    for result in results[1:]:
        assert _deviation(results[0], result) <= (1e-5 if fmt == Format.BFLOAT16 else 0.0)


@pytest.mark.parametrize(
    ("fmt", "epilogue"),
    [
        *((Format.FLOAT32, epilogue) for epilogue in _EPILOGUES),
        *((Format.BFLOAT16, epilogue) for epilogue in (Epilogue.RELU, Epilogue.ADD)),
        *((Format.INT8, epilogue) for epilogue in (Epilogue.STORE, Epilogue.ADD)),
    ],
)
def test_what_becomes_of_products(emitter: Emitter, fmt: Format, epilogue: Epilogue) -> None:
    torch.manual_seed(epilogue)
    x, weight, there = torch.randn(21, 96), torch.randn(96, 96) / 10, torch.randn(21, 96)
    out = _filled(there, torch.float32)
    emitter.multiply(_factors(emitter, x, fmt), pack([weight], [None], fmt), out, epilogue)
    emitter.run(21)
    assert _deviation(out.tensor[:21], _EPILOGUES[epilogue](x @ weight.T, there)) < _TOLERANCE[fmt]


@pytest.mark.parametrize(
    ("fmt", "epilogue"),
    [
        *((Format.FLOAT32, epilogue) for epilogue in _GATED),
        *((Format.BFLOAT16, Epilogue.SWIGLU), (Format.INT8, Epilogue.SWIGLU), (Format.INT8, Epilogue.GEGLU_TANH)),
    ],
)
def test_gated_pairs_of_products(emitter: Emitter, fmt: Format, epilogue: Epilogue) -> None:
    torch.manual_seed(epilogue)
    x, gate, up = torch.randn(30, 64), torch.randn(112, 64) / 4, torch.randn(112, 64) / 4
    out = Rows(30, 112, torch.float32)
    biases = [torch.randn(112), torch.randn(112)]
    emitter.multiply(_factors(emitter, x, fmt), pack([gate, up], biases, fmt), out, epilogue)
    emitter.run(30)
    expected = _GATED[epilogue](x @ gate.T + biases[0]) * (x @ up.T + biases[1])
    assert _deviation(out.tensor[:30, :112], expected) < 2 * _TOLERANCE[fmt]


def test_bfloat16_results_are_rounded_to_nearest(emitter: Emitter) -> None:
    x, weight = torch.randn(9, 32), torch.randn(48, 32)
    out = Rows(9, 48, torch.bfloat16)
    emitter.multiply(_filled(x, torch.float32), pack([weight], [None], Format.FLOAT32), out, Epilogue.STORE)
    emitter.run(9)
    torch.testing.assert_close(out.tensor[:9], (x @ weight.T).bfloat16(), rtol=1e-2, atol=1e-6)


def test_a_runtime_that_gives_fewer_threads_than_asked_for_holds_nothing_up() -> None:
    code = """
import torch
from millrace.model_manager.engine.cpu.team import Team
from millrace.model_manager.engine.cpu.matrix_ops import Format
from millrace.model_manager.engine.cpu.step_emitter import Emitter, NormWeights, Rows

source, target = Rows(5, 48, torch.float32, exact=True), Rows(5, 48, torch.uint8, exact=True)
source.tensor.fill_(1.0)
emitter = Emitter(Team(2))
emitter.quantize(source, 48, target)
emitter.run(5)
print(int(target.tensor[:5].sum()))
"""
    environment = os.environ | {"OMP_THREAD_LIMIT": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, timeout=600, capture_output=True, check=True)
    assert int(ran.stdout) == 5 * 48 * 255


@pytest.mark.parametrize("kind", Norm)
@pytest.mark.parametrize("fmt", Format)
def test_norms(emitter: Emitter, kind: Norm, fmt: Format) -> None:
    x, weight, bias = torch.randn(19, 80) * 3 + 1, torch.randn(80), torch.randn(80)
    expected = (
        functional.layer_norm(x, (80,), weight, bias, 1e-5)
        if kind == Norm.LAYER
        else functional.rms_norm(x, (80,), weight, 1e-5) + bias
    )
    out = Rows(19, 80, _DTYPES[fmt], exact=True)
    emitter.normalize(_filled(x, torch.float32), NormWeights(kind, weight, bias, 1e-5), out)
    emitter.run(19)
    got = out.tensor[:19].float()
    if fmt == Format.INT8:
        got = (got - 128) * out.scales[:19, None]
    assert _deviation(got, expected) < _TOLERANCE[fmt]


def test_a_row_that_is_not_finite_stays_so_in_int8_and_harms_no_other(emitter: Emitter) -> None:
    x, weight = torch.randn(12, 64), torch.randn(48, 64)
    broken = x.clone()
    broken[3, 5], broken[7, 63] = float("nan"), float("inf")
    out = Rows(12, 48, torch.float32)
    factors = _factors(emitter, broken, Format.INT8)
    emitter.multiply(factors, pack([weight], [None], Format.INT8), out, Epilogue.STORE)
    emitter.run(12)
    finite = out.tensor[:12].isfinite().all(dim=1)
    assert finite.tolist() == [row not in (3, 7) for row in range(12)]
    assert _deviation(out.tensor[:12][finite], (x @ weight.T)[finite]) < _TOLERANCE[Format.INT8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dim", "half"), [(32, 16), (64, 8), (32, 0)])
def test_heads_are_normalised_and_rotated(emitter: Emitter, dtype: torch.dtype, dim: int, half: int) -> None:
    shape = CacheShape(1, 3, 2, dim, 1, 16, dtype)
    heads = torch.randn(7, 7, dim).to(dtype)
    norms = tuple(NormWeights(Norm.RMS, torch.rand(dim) + 0.5, torch.zeros(dim), 1e-6) for _ in range(2))
    angles = Rotation(7, half)
    turn = torch.rand(7, half)
    angles.cos[:], angles.sin[:] = turn.cos(), turn.sin()
    rows = _filled(heads.flatten(1), dtype)
    emitter.rotate(rows, (norms[0], norms[1]), shape, angles)
    emitter.run(7)
    expected = heads.float()
    for part, norm in ((slice(0, 3), norms[0]), (slice(3, 5), norms[1])):
        normed = functional.rms_norm(expected[:, part], (dim,), norm.weight, 1e-6)
        first, second = normed[..., :half].clone(), normed[..., half : 2 * half].clone()
        cos, sin = angles.cos[:, None], angles.sin[:, None]
        normed[..., :half], normed[..., half : 2 * half] = first * cos - second * sin, second * cos + first * sin
        expected[:, part] = normed
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(rows.tensor[:7].float(), expected.flatten(1), rtol=tolerance, atol=tolerance)

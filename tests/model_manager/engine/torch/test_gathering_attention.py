"""The CPU kernels and the gathering attention against plain dense attention over contiguous keys and values."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.engine.cpu.attention import CpuAttention, supports
from millrace.model_manager.engine.paged_attention import AttentionOptions, CacheShape, PagedAttention
from millrace.model_manager.engine.quantization.rounding import round_rows
from millrace.model_manager.engine.torch.gathering_attention import GatheringAttention
from tests.model_manager.engine.batches import deal_blocks, make_step

States = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Query [n, heads, dim], key and value [n, kv heads, dim]."""

_Implementation = type[CpuAttention] | type[GatheringAttention]
_PLAIN = AttentionOptions(0.2)
_SPANS = [(0, 1), (0, 40), (299, 300), (50, 120), (280, 600)]
_SINKS = torch.tensor([-3.0, 0.0, 1.5, 9.0])
_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}

_kept_and_rounded = pytest.mark.parametrize("rounded", [None, torch.int8])


def test_bytes_per_block_counts_keys_and_values_of_every_layer() -> None:
    sizes: dict[str, Any] = {"layers": 3, "heads": 8, "kv_heads": 2, "dim": 64, "block_size": 16}
    assert _shape(**sizes).bytes_per_block == 2 * 16 * 3 * 2 * 64 * 4
    assert _shape(**sizes, rounded=torch.int8).bytes_per_block == 2 * 16 * 3 * 2 * (64 + 4)


_SHAPES: list[dict[str, Any]] = [
    *({"dim": dim, "dtype": dtype} for dim in (32, 64, 80, 96, 128) for dtype in (torch.float32, torch.bfloat16)),
    *({"block_size": size} for size in (8, 16, 32, 64, 128)),
    *({"heads": heads, "kv_heads": kv_heads} for heads, kv_heads in ((4, 4), (4, 1), (6, 2), (14, 2), (48, 1))),
]


@_kept_and_rounded
@pytest.mark.parametrize("sizes", _SHAPES, ids=str)
def test_every_shape_agrees_with_dense_attention(sizes: dict[str, Any], rounded: torch.dtype | None) -> None:
    spans = [(0, 1), (0, 70), (37, 90), (0, 129), (128, 129), (60, 300), (299, 300)]
    _check(CpuAttention, _shape(**sizes, rounded=rounded), spans)


@_kept_and_rounded
@pytest.mark.parametrize("window", [1, 7, 16, 100, 1000])
def test_a_sliding_window_hides_what_lies_further_back(window: int, rounded: torch.dtype | None) -> None:
    for implementation in (CpuAttention, GatheringAttention):
        _check(implementation, _shape(rounded=rounded), _SPANS, options=AttentionOptions(0.2, window))


@_kept_and_rounded
@pytest.mark.parametrize(("heads", "kv_heads"), [(12, 12), (10, 5)])
@pytest.mark.parametrize("sequences", [3, 5, 40])
@pytest.mark.parametrize("options", [AttentionOptions(0.2), AttentionOptions(0.2, window=20, softcap=1.5)])
def test_sequences_that_decode_are_attended_several_heads_at_a_time(
    heads: int, kv_heads: int, sequences: int, options: AttentionOptions, rounded: torch.dtype | None
) -> None:
    shape = _shape(heads=heads, kv_heads=kv_heads, rounded=rounded)
    _check(
        CpuAttention, shape, [(n, n + 1) for n in range(20, 20 + sequences)] + [(3, 20), (299, 300)], options=options
    )


@_kept_and_rounded
def test_pieces_of_two_rows_are_attended_with_all_of_many_heads(rounded: torch.dtype | None) -> None:
    """The last of a prompt's pieces, and drafts of one token, among sequences that decode."""
    shape = _shape(heads=40, kv_heads=40, rounded=rounded)
    _check(CpuAttention, shape, [(n, n + 2) for n in range(20, 30)] + [(0, 34), (50, 51)])


@pytest.mark.parametrize("softcap", [0.5, 2.0, 50.0])
@pytest.mark.parametrize("implementation", [CpuAttention, GatheringAttention])
def test_a_soft_cap_bounds_the_scores(implementation: _Implementation, softcap: float) -> None:
    _check(implementation, _shape(), _SPANS, options=AttentionOptions(0.2, softcap=softcap))


@pytest.mark.parametrize("implementation", [CpuAttention, GatheringAttention])
def test_sinks_take_a_share_of_every_head(implementation: _Implementation) -> None:
    _check(implementation, _shape(), _SPANS, options=AttentionOptions(0.2, sinks=_SINKS))
    _check(implementation, _shape(), _SPANS, options=AttentionOptions(0.2, sinks=_SINKS.to(torch.bfloat16)))


@_kept_and_rounded
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("implementation", [CpuAttention, GatheringAttention])
def test_window_soft_cap_and_sinks_go_together(
    implementation: _Implementation, dtype: torch.dtype, rounded: torch.dtype | None
) -> None:
    options = AttentionOptions(0.2, window=20, softcap=1.5, sinks=_SINKS)
    _check(implementation, _shape(dtype=dtype, rounded=rounded), _SPANS, options=options)


@pytest.mark.parametrize("value", [1e-6, 1e-3, 0.3, 0.9999, 1.0, 1.0001, 3.0, 9.0, 1e4])
def test_the_soft_cap_of_a_score_is_exact_to_float32(value: float) -> None:
    """Two tokens, their scores 0 and `value`: the output is their difference's logistic function."""
    shape = _shape(heads=1, kv_heads=1, dim=8, block_size=8)
    attention = CpuAttention(shape, 1)
    attention.begin(make_step([(0, 2)], deal_blocks([2], 8, shape.num_blocks), 8))
    key = torch.zeros(2, 1, 8)
    key[1, 0, 0] = value
    weights = torch.tensor([0.0, 1.0]).view(2, 1, 1).expand(2, 1, 8)
    got = attention.attend(0, torch.ones(2, 1, 8), key, weights, AttentionOptions(1.0, softcap=1.0))[1, 0, 0]
    assert float(got) == pytest.approx(1 / (1 + math.exp(-math.tanh(value))), rel=3e-7)


@pytest.mark.parametrize("rounded", [None, torch.int8, torch.float8_e4m3fn])
def test_the_gathering_attention_agrees_with_dense_attention(rounded: torch.dtype | None) -> None:
    shape = _shape(heads=6, kv_heads=2, rounded=rounded)
    _check(GatheringAttention, shape, [(0, 1), (0, 40), (99, 100), (5, 50)])


def test_a_token_of_zeros_is_rounded_to_zeros() -> None:
    shape = _shape(rounded=torch.int8)
    for attention in (CpuAttention(shape, 1), GatheringAttention(shape, torch.device("cpu"))):
        attention.begin(make_step([(0, 3)], deal_blocks([3], shape.block_size, shape.num_blocks), shape.block_size))
        query, key, value = (torch.zeros(3, heads, shape.head_dim) for heads in (shape.num_heads, 2, 2))
        assert torch.equal(attention.attend(0, query, key, value, AttentionOptions(1.0)), query)


@given(
    data=st.data(),
    dim=st.sampled_from([8, 24, 32, 64]),
    block_size=st.sampled_from([8, 16, 32]),
    groups=st.sampled_from([(1, 1), (2, 3), (3, 1)]),
    window=st.none() | st.integers(1, 80),
    softcap=st.none() | st.sampled_from([0.7, 30.0]),
    has_sinks=st.booleans(),
    rounded=st.sampled_from([None, torch.int8]),
    threads=st.sampled_from([1, 2]),
)
@settings(max_examples=40)
def test_any_mixture_of_chunks_agrees_with_dense_attention(
    data: st.DataObject,
    dim: int,
    block_size: int,
    groups: tuple[int, int],
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    rounded: torch.dtype | None,
    threads: int,
) -> None:
    ends = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=6))
    spans = [(data.draw(st.integers(0, end - 1)), end) for end in ends]
    shape = _shape(heads=groups[0] * groups[1], kv_heads=groups[0], dim=dim, block_size=block_size, rounded=rounded)
    sinks = torch.linspace(-2.0, 2.0, shape.num_heads) if has_sinks else None
    _check(CpuAttention, shape, spans, threads, AttentionOptions(0.2, window, softcap, sinks))


@_kept_and_rounded
def test_what_lies_in_a_block_beyond_its_sequence_is_never_used(rounded: torch.dtype | None) -> None:
    """A reused block is full of another sequence's values, which may be NaN."""
    shape = _shape(rounded=rounded)
    tables = deal_blocks([40], shape.block_size, shape.num_blocks)
    attention = CpuAttention(shape, 2)
    poison = torch.full((48, shape.num_kv_heads, shape.head_dim), math.nan)
    attention.begin(make_step([(0, 48)], tables, shape.block_size))
    attention.attend(0, torch.zeros(48, shape.num_heads, shape.head_dim), poison, poison, AttentionOptions(1.0))
    attention.begin(make_step([(0, 37)], tables, shape.block_size))
    query, key, value = (torch.ones(37, heads, shape.head_dim) for heads in (shape.num_heads, 2, 2))
    assert torch.equal(attention.attend(0, query, key, value, AttentionOptions(1.0)), query)


@_kept_and_rounded
@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_value_that_is_not_finite_stays_in_its_own_sequence(spoilt: float, rounded: torch.dtype | None) -> None:
    shape = _shape(rounded=rounded)
    tables = deal_blocks([20, 20], shape.block_size, shape.num_blocks)
    attention = CpuAttention(shape, 2)
    attention.begin(make_step([(0, 20), (0, 20)], tables, shape.block_size))
    query, key, value = (torch.ones(40, heads, shape.head_dim) for heads in (shape.num_heads, 2, 2))
    key[7] = spoilt
    output = attention.attend(0, query, key, value, AttentionOptions(1.0))
    assert torch.isnan(output[19]).all()
    assert torch.equal(output[20:], query[20:])


@_kept_and_rounded
def test_a_row_does_not_depend_on_its_company(rounded: torch.dtype | None) -> None:
    """Bit for bit: a sequence decoded alone and among others."""
    shape = _shape(rounded=rounded)
    generator = torch.Generator().manual_seed(3)
    spans = [(199, 200), (0, 30), (59, 60)]
    tables = deal_blocks([end for _, end in spans], shape.block_size, shape.num_blocks)
    states = _random(200, shape, generator)
    alone, company = CpuAttention(shape, 1), CpuAttention(shape, 2)
    for attention in (alone, company):
        attention.begin(make_step([(0, 199)], tables[:1], shape.block_size))
        attention.attend(0, *_packed([states], [(0, 199)]), AttentionOptions(1.0))
    alone.begin(make_step(spans[:1], tables[:1], shape.block_size))
    company.begin(make_step(spans, tables, shape.block_size))
    others = _random(31, shape, generator)
    together = company.attend(0, *_packed([states, others], [(199, 200), (0, 31)]), AttentionOptions(1.0))
    assert torch.equal(alone.attend(0, *_packed([states], [(199, 200)]), AttentionOptions(1.0))[0], together[0])


def test_layers_do_not_share_their_cache() -> None:
    shape = _shape(layers=2)
    attention = CpuAttention(shape, 1)
    tables = deal_blocks([2], shape.block_size, shape.num_blocks)
    ones = torch.ones(1, shape.num_kv_heads, shape.head_dim)
    query = torch.zeros(1, shape.num_heads, shape.head_dim)
    for position, factor in ((0, 1.0), (1, 3.0)):
        attention.begin(make_step([(position, position + 1)], tables, shape.block_size))
        first = attention.attend(0, query, ones, ones * factor, AttentionOptions(1.0))
        second = attention.attend(1, query, ones, ones * factor * 10, AttentionOptions(1.0))
    assert torch.equal(first, torch.full_like(first, 2.0))
    assert torch.equal(second, torch.full_like(second, 20.0))


def test_sizes_that_the_kernels_do_not_take_are_known() -> None:
    assert supports(_shape(dim=40))
    assert not supports(_shape(dim=36))
    assert not supports(_shape(dtype=torch.float16))


def _shape(
    *, layers: int = 1, heads: int = 4, kv_heads: int = 2, dim: int = 32, block_size: int = 16,
    dtype: torch.dtype = torch.float32, rounded: torch.dtype | None = None,
) -> CacheShape:  # fmt: skip
    return CacheShape(layers, heads, kv_heads, dim, 3000 // block_size, block_size, dtype, rounded)


def _check(
    implementation: _Implementation,
    shape: CacheShape,
    spans: Seq[tuple[int, int]],
    threads: int = 2,
    options: AttentionOptions = _PLAIN,
) -> None:
    """Cache what precedes each span in a first step, attend the spans in a second; compare every row.

    What a rounding cache is compared with is exact attention over keys and values that have been rounded.
    """
    attention: PagedAttention
    if implementation is CpuAttention:
        attention = CpuAttention(shape, threads)
    else:
        attention = GatheringAttention(shape, torch.device("cpu"))
    generator = torch.Generator().manual_seed(len(spans))
    ends = [end for _, end in spans]
    tables = deal_blocks(ends, shape.block_size, shape.num_blocks)
    states = [_random(end, shape, generator) for end in ends]
    cached = [index for index, (start, _) in enumerate(spans) if start]
    if cached:
        attention.begin(make_step([(0, spans[i][0]) for i in cached], tables[cached], shape.block_size))
        attention.attend(0, *_packed([states[i] for i in cached], [(0, spans[i][0]) for i in cached]), options)
    attention.begin(make_step(spans, tables, shape.block_size))
    got = attention.attend(0, *_packed(states, spans), options)
    kept = [(q, _kept(k, shape), _kept(v, shape)) for q, k, v in states]
    wanted = torch.cat([_dense(*s, options)[start:] for s, (start, _) in zip(kept, spans, strict=True)])
    torch.testing.assert_close(got.float(), wanted, atol=_TOLERANCE[shape.dtype], rtol=_TOLERANCE[shape.dtype])


def _kept(states: torch.Tensor, shape: CacheShape) -> torch.Tensor:
    if shape.rounded is None:
        return states
    return round_rows(states, shape.rounded).values()


def _random(count: int, shape: CacheShape, generator: torch.Generator) -> States:
    def draw(heads: int) -> torch.Tensor:
        return torch.randn(count, heads, shape.head_dim, generator=generator).to(shape.dtype)

    return draw(shape.num_heads), draw(shape.num_kv_heads), draw(shape.num_kv_heads)


def _packed(states: Seq[States], spans: Seq[tuple[int, int]]) -> States:
    q, k, v = (
        torch.cat([one[part][start:end] for one, (start, end) in zip(states, spans, strict=True)]) for part in range(3)
    )
    return q, k, v


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """[n, heads, dim] softmax(q k^T) v in float64, written out."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * options.scale
    if options.softcap is not None:
        scores = options.softcap * (scores / options.softcap).tanh()
    back = torch.arange(len(q)).unsqueeze(1) - torch.arange(len(q))
    weights = scores.masked_fill((back < 0) | (back >= (options.window or len(q))), -math.inf).exp()
    sinks = torch.full((q.shape[1],), -math.inf) if options.sinks is None else options.sinks
    total = weights.sum(-1, keepdim=True) + sinks.double().exp().view(-1, 1, 1)
    return torch.einsum("hij,jhd->ihd", weights / total, v).float()

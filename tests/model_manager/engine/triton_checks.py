"""Triton's kernels against the gathering attention on a CPU: `TRITON_INTERPRET=1 python -m …triton_checks NAMES`.

A process of its own, because the interpreter is chosen for a whole process when triton is imported; without it the
kernels run on a GPU. Prints one JSON object: for each check named the text of what went wrong, "" for nothing.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import torch

from millrace.model_manager.engine.cuda.query_tiles import Tiles
from millrace.model_manager.engine.cuda.step_buffer import StepBuffer
from millrace.model_manager.engine.cuda.triton_attention import TritonAttention
from millrace.model_manager.engine.interface import Longs
from millrace.model_manager.engine.paged_attention import AttentionOptions, CacheShape, PagedAttention
from millrace.model_manager.engine.quantization.rounding import round_rows
from millrace.model_manager.engine.torch.gathering_attention import GatheringAttention
from tests.model_manager.engine.batches import deal_blocks, make_step

CPU = torch.device("cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = CPU if INTERPRETED else torch.device("cuda")
"""Where the kernels run; what they are compared with is computed on a CPU."""
TOKENS = 512
"""Tokens of the cache, about."""


def shape(
    *, heads: int = 4, kv_heads: int = 2, dim: int = 16, block_size: int = 16, layers: int = 1,
    dtype: torch.dtype = torch.float32, rounded: torch.dtype | None = None,
) -> CacheShape:  # fmt: skip
    return CacheShape(layers, heads, kv_heads, dim, TOKENS // block_size, block_size, dtype, rounded)


def triton_attention(of: CacheShape, num_sms: int = 1) -> TritonAttention:
    buffer = StepBuffer(DEVICE, max_tokens=TOKENS, max_seqs=16, max_blocks=of.num_blocks)
    return TritonAttention(of, DEVICE, buffer, num_sms)


def compare(of: CacheShape, spans: Seq[tuple[int, int]], num_sms: int = 1, **options: object) -> None:
    """Cache what precedes each span in a first step, attend the spans in a second; compare every row with both."""
    settings = AttentionOptions(scale=0.3, **options)  # type: ignore[arg-type]
    ours, theirs = triton_attention(of, num_sms), GatheringAttention(of, CPU)
    ends = [end for _, end in spans]
    tables = deal_blocks(ends, of.block_size, of.num_blocks)
    random = torch.Generator().manual_seed(len(spans))
    states = [[torch.randn(end, n, of.head_dim, generator=random).to(of.dtype)
               for n in (of.num_heads, of.num_kv_heads, of.num_kv_heads)] for end in ends]  # fmt: skip
    cached = [index for index, (start, _) in enumerate(spans) if start]
    if cached:
        cut = [(0, spans[index][0]) for index in cached]
        step, packed = make_step(cut, tables[cached], of.block_size), _packed([states[i] for i in cached], cut)
        _write(ours, of, step.slots, packed)  # attending all these too would take the interpreter long
        _attend(theirs, step, packed, settings)
    step, packed = make_step(spans, tables, of.block_size), _packed(states, spans)
    got, wanted = (_attend(attention, step, packed, settings) for attention in (ours, theirs))
    tolerance = 2e-5 if of.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


def _write(attention: TritonAttention, of: CacheShape, slots: Longs, packed: list[torch.Tensor]) -> None:
    """Keys and values into the cache, by the layout that triton_kernels.py gives."""
    blocks, offsets = torch.from_numpy(slots // of.block_size), torch.from_numpy(slots % of.block_size)
    for kind in (0, 1):
        states = packed[1 + kind]
        if of.rounded is not None:
            rounded = round_rows(states, of.rounded)
            attention._scales[0][blocks, kind, :, offsets] = rounded.scales.to(DEVICE)
            states = rounded.steps
        attention._layers[0][blocks, kind, :, offsets] = states.to(DEVICE)


def _packed(states: Seq[list[torch.Tensor]], spans: Seq[tuple[int, int]]) -> list[torch.Tensor]:
    return [torch.cat([one[part][a:b] for one, (a, b) in zip(states, spans, strict=True)]) for part in range(3)]


def _attend(
    attention: PagedAttention, step: object, packed: list[torch.Tensor], options: AttentionOptions
) -> torch.Tensor:
    """What either attention gives, on the CPU."""
    attention.begin(step)  # type: ignore[arg-type]
    if not isinstance(attention, GatheringAttention):
        packed = _placed(packed)
        options = replace(options, sinks=None if options.sinks is None else options.sinks.to(DEVICE))
    return attention.attend(0, packed[0], packed[1], packed[2], options).cpu()


def _placed(packed: list[torch.Tensor]) -> list[torch.Tensor]:
    """Where the kernels run, with the strides that they have: views of one product stay such."""
    return [
        torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=DEVICE).copy_(each) for each in packed
    ]


def decoding_sequences_of_many_lengths() -> None:
    compare(shape(), [(0, 1), (15, 16), (16, 17), (199, 200)])


def prompts_chunks_and_decodes_in_one_step() -> None:
    compare(shape(), [(0, 70), (40, 41), (20, 75), (0, 1), (33, 41), (100, 110)])


def query_heads_that_are_no_power_of_two_a_kv_head() -> None:
    compare(shape(heads=14, kv_heads=2), [(0, 30), (40, 41), (60, 64)])


def one_kv_head_for_more_query_heads_than_a_tile_has_rows() -> None:
    compare(shape(heads=18, kv_heads=1), [(0, 9), (40, 41)])


def as_many_kv_heads_as_query_heads() -> None:
    compare(shape(heads=3, kv_heads=3), [(0, 20), (40, 41)])


def head_dimensions_that_are_padded() -> None:
    for dim in (8, 24, 80):
        compare(shape(dim=dim), [(0, 20), (40, 41)])


def blocks_of_other_sizes() -> None:
    for block_size in (8, 64):
        compare(shape(block_size=block_size), [(0, 70), (100, 101)])


def float16() -> None:
    """bfloat16 takes the same path; the interpreter cannot multiply it (ON_GPUS)."""
    compare(shape(dtype=torch.float16, dim=32), [(0, 40), (60, 61), (0, 1)])


def bfloat16_in_the_shape_of_a_real_model() -> None:
    of = shape(dtype=torch.bfloat16, heads=32, kv_heads=8, dim=128)
    compare(of, [(0, 40), (60, 61), (0, 1), (299, 300)])
    compare(of, [(40, 61), (0, 130), (150, 200)], num_sms=132)
    compare(of, [(299, 300), (3, 4)], num_sms=132, window=100)


def a_cache_rounded_to_int8() -> None:
    compare(shape(rounded=torch.int8, dim=24), [(0, 40), (40, 41), (60, 66)])


def a_cache_rounded_to_int8_in_every_way() -> None:
    """Values of a thousandth in half precision too: a weight times a scale would be less than it can tell apart."""
    of = shape(rounded=torch.int8, dtype=torch.float16, dim=32)
    compare(of, [(0, 40), (199, 200), (0, 1)])
    compare(shape(rounded=torch.int8), [(299, 300), (3, 4)], num_sms=64, window=200, softcap=2.0)
    attention, plain = triton_attention(of), GatheringAttention(of, CPU)
    step = make_step([(0, 300)], deal_blocks([300], of.block_size, of.num_blocks), of.block_size)
    packed = [torch.ones(300, heads, of.head_dim, dtype=of.dtype) for heads in (4, 2, 2)]
    packed[2] *= torch.linspace(0.0005, 0.001, 300)[:, None, None]
    got, wanted = (_attend(each, step, packed, AttentionOptions(scale=1.0)) for each in (attention, plain))
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=5e-3)


def what_is_stored_in_int8_is_what_rounding_gives() -> None:
    of = shape(rounded=torch.int8)
    attention = triton_attention(of)
    step = make_step([(0, 5)], deal_blocks([5], of.block_size, of.num_blocks), of.block_size)
    states = torch.randn(5, of.num_kv_heads, of.head_dim, generator=torch.Generator().manual_seed(0)) * 3
    states[1], states[2, 0, 3] = 0.0, math.inf
    _attend(attention, step, [torch.zeros(5, of.num_heads, of.head_dim), states, states], AttentionOptions(scale=1.0))
    blocks, offsets = torch.from_numpy(step.slots // of.block_size), torch.from_numpy(step.slots % of.block_size)
    wanted = round_rows(states, torch.int8)
    for kind in (0, 1):
        assert torch.equal(attention._layers[0].cpu()[blocks, kind, :, offsets], wanted.steps)
        scales = attention._scales[0].cpu()[blocks, kind, :, offsets]
        torch.testing.assert_close(scales, wanted.scales, rtol=0.0, atol=0.0, equal_nan=True)


def contexts_split_among_programs() -> None:
    spans = [(299, 300), (0, 1), (130, 132)]
    assert triton_attention(shape(), 64).num_splits(3) == 2
    compare(shape(), spans, num_sms=64)


def windows() -> None:
    for window in (1, 9, 5000):
        compare(shape(), [(0, 40), (199, 200)], window=window)
    compare(shape(), [(299, 300), (3, 4)], num_sms=64, window=200)


def soft_caps() -> None:
    compare(shape(), [(0, 30), (99, 100)], softcap=0.8)


def sinks() -> None:
    given = torch.tensor([0.5, -1.0, 3.0, 0.0])
    compare(shape(), [(0, 30), (99, 100)], sinks=given)
    compare(shape(), [(299, 300), (0, 1)], num_sms=64, sinks=given, window=200, softcap=2.0)


def what_an_owner_left_in_a_block_is_never_used() -> None:
    of = shape()
    tables = deal_blocks([40], of.block_size, of.num_blocks)
    attention, options = triton_attention(of), AttentionOptions(scale=1.0)
    poison = torch.full((48, of.num_kv_heads, of.head_dim), math.nan)
    zeros = torch.zeros(48, of.num_heads, of.head_dim)
    _attend(attention, make_step([(0, 48)], tables, of.block_size), [zeros, poison, poison], options)
    packed = [torch.ones(37, heads, of.head_dim) for heads in (of.num_heads, 2, 2)]
    assert torch.equal(_attend(attention, make_step([(0, 37)], tables, of.block_size), packed, options), packed[0])


def a_nan_stays_in_its_own_sequence() -> None:
    of = shape()
    tables = deal_blocks([20, 20], of.block_size, of.num_blocks)
    step = make_step([(0, 20), (0, 20)], tables, of.block_size)
    query, key, value = (torch.ones(40, heads, of.head_dim) for heads in (of.num_heads, 2, 2))
    key[7] = math.nan
    output = _attend(triton_attention(of), step, [query, key, value], AttentionOptions(scale=1.0))
    assert torch.isnan(output[19]).all()
    assert torch.equal(output[20:], query[20:])


def rows_of_padding_store_nothing_and_give_zeros() -> None:
    of = shape()
    for num_sms in (1, 64):
        attention = triton_attention(of, num_sms)
        step = make_step([(0, 1), (0, 1)], deal_blocks([1, 1], of.block_size, of.num_blocks), of.block_size)
        padded = replace(step, slots=np.array([step.slots[0], -1]))
        attention.tiles = lambda _: Tiles(np.array([[0, 0, 1], [0, 1, 0]], np.int32), 2)  # type: ignore[method-assign, assignment]
        layer = attention._layers[0].fill_(5.0)
        query, key, value = (torch.ones(2, heads, of.head_dim) for heads in (of.num_heads, 2, 2))
        output = _attend(attention, padded, [query, key, value], AttentionOptions(scale=1.0))
        assert torch.equal(output, torch.stack([query[0], torch.zeros_like(query[0])]))
        assert int((layer != 5.0).sum()) == 2 * of.num_kv_heads * of.head_dim


def keys_and_values_may_be_views_of_one_product() -> None:
    of = shape()
    tables = deal_blocks([20], of.block_size, of.num_blocks)
    product = torch.randn(20, 8, of.head_dim)
    packed = [product[:, :4], product[:, 4:6], product[:, 6:]]
    step, options = make_step([(0, 20)], tables, of.block_size), AttentionOptions(scale=0.3)
    got, wanted = (_attend(a, step, packed, options) for a in (triton_attention(of), GatheringAttention(of, CPU)))
    torch.testing.assert_close(got, wanted)


def layers_do_not_share_their_cache() -> None:
    of = shape(layers=2)
    attention, options = triton_attention(of), AttentionOptions(scale=1.0)
    tables = deal_blocks([2], of.block_size, of.num_blocks)
    query = torch.zeros(1, of.num_heads, of.head_dim, device=DEVICE)
    ones = torch.ones(1, of.num_kv_heads, of.head_dim, device=DEVICE)
    for position, factor in ((0, 1.0), (1, 3.0)):
        attention.begin(make_step([(position, position + 1)], tables, of.block_size))
        outputs = [attention.attend(layer, query, ones, ones * factor * 10**layer, options) for layer in (0, 1)]
    assert [float(output.max()) for output in outputs] == [2.0, 20.0]


CHECKS = {
    check.__name__: check
    for check in (
        decoding_sequences_of_many_lengths,
        prompts_chunks_and_decodes_in_one_step,
        query_heads_that_are_no_power_of_two_a_kv_head,
        one_kv_head_for_more_query_heads_than_a_tile_has_rows,
        as_many_kv_heads_as_query_heads,
        head_dimensions_that_are_padded,
        blocks_of_other_sizes,
        float16,
        a_cache_rounded_to_int8,
        a_cache_rounded_to_int8_in_every_way,
        what_is_stored_in_int8_is_what_rounding_gives,
        contexts_split_among_programs,
        windows,
        soft_caps,
        sinks,
        what_an_owner_left_in_a_block_is_never_used,
        a_nan_stays_in_its_own_sequence,
        rows_of_padding_store_nothing_and_give_zeros,
        keys_and_values_may_be_views_of_one_product,
        layers_do_not_share_their_cache,
    )
}
ON_GPUS = CHECKS | {bfloat16_in_the_shape_of_a_real_model.__name__: bfloat16_in_the_shape_of_a_real_model}
"""All checks; the interpreter runs CHECKS alone."""
QUICK = (
    "prompts_chunks_and_decodes_in_one_step",
    "contexts_split_among_programs",
    "a_cache_rounded_to_int8",
    "what_is_stored_in_int8_is_what_rounding_gives",
    "rows_of_padding_store_nothing_and_give_zeros",
)


def report(checks: Mapping[str, Callable[[], None]]) -> None:
    """Run the checks that the command line names, and print what became of each."""
    warnings.simplefilter("ignore")  # numpy's, about the NaN that some checks are about
    outcomes = {}
    for name in sys.argv[1:]:
        try:
            checks[name]()
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    report(CHECKS)

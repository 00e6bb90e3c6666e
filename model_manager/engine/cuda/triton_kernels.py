"""The kernels of paged attention in Triton: store a step's keys and values, attend tiles of queries, join splits.

    cache  [blocks, 2 (keys, values), kv heads, block size, dim]
    scales [blocks, 2, kv heads, block size], where the cache is int8: a row of it is worth its steps times its scale

so that what one program reads of a block, one head's keys, is one contiguous page; the cache's row r has scale r.
Attention is computed with a running maximum and sum (Dao et al., FlashAttention-2, arXiv:2307.08691); a tile's context
can be split among programs whose parts are joined afterwards (Flash-Decoding, Dao et al. 2023). Knows no step and no
model; triton_attention.py says what each argument is.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def store(
    keys: tl.tensor,
    values: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    slots: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROUNDED: tl.constexpr,
) -> None:
    """Program t writes the keys and values of token t to its slot; a slot below 0 is nowhere."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_PADDED)
    slot = tl.load(slots + token + head * 0).to(tl.int64)
    dim = tl.arange(0, DIM_PADDED)
    kept = (head < KV_HEADS) & (slot >= 0)
    real = kept[:, None] & (dim < DIM)[None, :]
    element = head[:, None] * DIM + dim[None, :]
    key = tl.load(keys + token * key_stride + element, mask=real, other=0.0)
    value = tl.load(values + token * value_stride + element, mask=real, other=0.0)
    row = ((slot // BLOCK_SIZE) * (2 * KV_HEADS) + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    _put(cache, scales, row, key, dim, kept, real, DIM, ROUNDED)
    _put(cache, scales, row + KV_HEADS * BLOCK_SIZE, value, dim, kept, real, DIM, ROUNDED)


@triton.jit
def _put(
    cache: tl.tensor,
    scales: tl.tensor,
    row: tl.tensor,
    states: tl.tensor,
    dim: tl.tensor,
    kept: tl.tensor,
    real: tl.tensor,
    DIM: tl.constexpr,
    ROUNDED: tl.constexpr,
) -> None:
    """Write [heads, dim] to these rows of the cache, rounded as rounding.round_rows does."""
    if ROUNDED:
        states = states.to(tl.float32)
        most = tl.max(tl.abs(states), 1) + tl.sum(states * 0.0, 1)  # NaN where a value is not finite
        tl.store(scales + row, tl.div_rn(most, 127.0), mask=kept)
        steps = states * tl.div_rn(127.0, most)[:, None]
        steps = tl.where(steps == steps, tl.minimum(tl.maximum(steps, -127.0), 127.0), 0.0)
        states = (steps + 12582912.0) - 12582912.0  # 1.5 * 2^23 leaves no bits behind the point: to the nearest even
    tl.store(cache + row[:, None] * DIM + dim[None, :], states.to(cache.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize_on_alignment=["tiles"])
def attend(
    query: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    output: tl.tensor,
    tiles: tl.tensor,
    positions: tl.tensor,
    tables: tl.tensor,
    table_stride: tl.tensor,
    sinks: tl.tensor,
    part_outputs: tl.tensor,
    part_stats: tl.tensor,
    query_stride: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    window: tl.tensor,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    ROUNDED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Program (tile, kv head, split): row r of a tile is its token r // GROUP, query head r % GROUP of the KV head.

    `table_stride` lies on the device, so that a captured launch takes tables of any width. A tile of no tokens reads no
    context and writes a row of zeros. With SPLITS = 1 the result goes to `output`, else unfinished parts to `part_*`.
    """
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    table = tables + tl.load(tiles + tile * 3).to(tl.int64) * tl.load(table_stride)
    first = tl.load(tiles + tile * 3 + 1).to(tl.int64)
    count = tl.load(tiles + tile * 3 + 2)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM_PADDED)
    valid = row // GROUP < count
    position = tl.load(positions + first + row // GROUP, mask=valid, other=-1)
    q = _queries(query + first * query_stride, query_stride, row, valid, head, dim, GROUP, DIM)
    earliest = tl.load(positions + first) - window + 1
    low, high = _context(position, earliest, split, KEYS, SPLITS, WINDOWED)
    most, total = _before_any_key(sinks, row, valid, head, split, GROUP, ROWS, HAS_SINKS)
    summed = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    for start in range(low, high, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < high
        block = tl.load(table + key // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        cached = (block * (2 * KV_HEADS) + head) * BLOCK_SIZE + key % BLOCK_SIZE
        k = _cached(cache, cached, inside, dim, DIM)
        score = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION) * scale
        if ROUNDED:
            score = score * tl.load(scales + cached, mask=inside, other=0.0)[None, :]
        score = _shaped(score, key, inside, position, softcap, window, CAPPED, WINDOWED)
        most, total, weight, kept = _weighed(score, most, total)
        cached = cached + KV_HEADS * BLOCK_SIZE
        v = _cached(cache, cached, inside, dim, DIM).to(q.dtype)
        if ROUNDED:
            # by the largest of the scales last, so that weights keep the size that half precision has the bits for
            its_scale = tl.load(scales + cached, mask=inside, other=0.0)
            largest = tl.maximum(tl.max(its_scale, 0), 1.0e-30)
            weight = weight * (its_scale / largest)[None, :]
            added = tl.dot(weight.to(v.dtype), v, input_precision=PRECISION) * largest
        else:
            added = tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        summed = summed * kept[:, None] + added

    if SPLITS == 1:
        _answer(output, summed, total, row, first, count, head, dim, GROUP, KV_HEADS, DIM)
    else:
        part = ((tile * KV_HEADS + head) * SPLITS + split).to(tl.int64) * ROWS + row
        tl.store(part_outputs + part[:, None] * DIM_PADDED + dim[None, :], summed)
        tl.store(part_stats + part * 2, most)
        tl.store(part_stats + part * 2 + 1, total)


@triton.jit
def _queries(
    query: tl.tensor,
    stride: tl.tensor,
    row: tl.tensor,
    valid: tl.tensor,
    head: tl.tensor,
    dim: tl.tensor,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
) -> tl.tensor:
    """[ROWS, DIM_PADDED] of the tile whose first token's queries are at `query`; 0 where there is none."""
    element = (head * GROUP + row % GROUP)[:, None] * DIM + dim[None, :]
    real = valid[:, None] & (dim < DIM)[None, :]
    return tl.load(query + (row // GROUP).to(tl.int64)[:, None] * stride + element, mask=real, other=0.0)


@triton.jit
def _context(
    position: tl.tensor,
    earliest: tl.tensor,
    split: tl.tensor,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Begin and end of this split's part of the tile's context. With a window nothing before `earliest` is in it."""
    end = tl.max(position, 0) + 1
    begin = end * 0
    if WINDOWED:
        begin = tl.maximum(earliest, 0) // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(end - begin, SPLITS), KEYS) * KEYS
    low = begin + split * share
    return low, tl.minimum(end, low + share)


@triton.jit
def _before_any_key(
    sinks: tl.tensor,
    row: tl.tensor,
    valid: tl.tensor,
    head: tl.tensor,
    split: tl.tensor,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """[ROWS] the greatest score so far, times log2(e), and the sum of weights: nothing, or the head's sink."""
    most = tl.full([ROWS], -1.0e30, tl.float32)  # finite keeps rows that see nothing free of infinity minus infinity
    total = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        if split == 0:
            most = tl.load(sinks + head * GROUP + row % GROUP, mask=valid, other=0.0).to(tl.float32) * _LOG2E
            total += 1.0
    return most, total


@triton.jit
def _cached(cache: tl.tensor, row: tl.tensor, inside: tl.tensor, dim: tl.tensor, DIM: tl.constexpr) -> tl.tensor:
    """[KEYS, DIM_PADDED] those rows; 0 beyond the context, where the block's last owner left something."""
    written = inside[:, None] & (dim < DIM)[None, :]
    return tl.load(cache + row[:, None] * DIM + dim[None, :], mask=written, other=0)


@triton.jit
def _shaped(
    score: tl.tensor,
    key: tl.tensor,
    inside: tl.tensor,
    position: tl.tensor,
    softcap: tl.tensor,
    window: tl.tensor,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tl.tensor:
    """Scores [ROWS, KEYS] capped, times log2(e), and minus infinity where a row does not see a key."""
    if CAPPED:
        score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)  # softcap * tanh(score / softcap)
    seen = inside[None, :] & (key[None, :] <= position[:, None])
    if WINDOWED:
        seen = seen & (key[None, :] > position[:, None] - window)
    return tl.where(seen, score * _LOG2E, float("-inf"))


@triton.jit
def _weighed(score: tl.tensor, most: tl.tensor, total: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """One step of the online softmax: the new maximum, the new sum of weights, these scores' weights, and the factor
    by which earlier sums are scaled.
    """
    higher = tl.maximum(most, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    kept = tl.exp2(most - higher)
    return higher, total * kept + tl.sum(weight, 1), weight, kept


@triton.jit
def _answer(
    output: tl.tensor,
    summed: tl.tensor,
    total: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    head: tl.tensor,
    dim: tl.tensor,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
) -> None:
    """Write the tile's rows; of a tile of no tokens one row of zeros."""
    result = tl.div_rn(summed, tl.where(total == 0.0, 1.0, total)[:, None])
    token = row // GROUP
    answered = (token < tl.maximum(count, 1))[:, None] & (dim < DIM)[None, :]
    element = (head * GROUP + row % GROUP)[:, None] * DIM + dim[None, :]
    place = output + (first + token)[:, None] * (GROUP * KV_HEADS * DIM) + element
    tl.store(place, result.to(output.dtype.element_ty), mask=answered)


@triton.jit(do_not_specialize_on_alignment=["tiles"])
def join(
    output: tl.tensor,
    tiles: tl.tensor,
    part_outputs: tl.tensor,
    part_stats: tl.tensor,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Program (tile, kv head) adds up the parts that `attend` left."""
    tile, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(tiles + tile * 3 + 1).to(tl.int64)
    count = tl.load(tiles + tile * 3 + 2)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM_PADDED)
    most = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    for split in range(SPLITS):
        part = ((tile * KV_HEADS + head) * SPLITS + split).to(tl.int64) * ROWS + row
        its_most = tl.load(part_stats + part * 2)
        higher = tl.maximum(most, its_most)
        kept, added = tl.exp2(most - higher), tl.exp2(its_most - higher)
        its_sum = tl.load(part_outputs + part[:, None] * DIM_PADDED + dim[None, :])
        summed = summed * kept[:, None] + its_sum * added[:, None]
        total = total * kept + tl.load(part_stats + part * 2 + 1) * added
        most = higher
    _answer(output, summed, total, row, first, count, head, dim, GROUP, KV_HEADS, DIM)

"""The kernels of paged attention in Triton: store a step's keys and values, attend tiles of queries, join splits.

    cache [blocks, 2 (keys, values), kv heads, block size, dim]

so that what one program reads of a block, one head's keys, is one contiguous page. Attention is computed with a
running maximum and sum (Dao et al., FlashAttention-2, arXiv:2307.08691); a tile's context can be split among programs
whose parts are joined afterwards (Flash-Decoding, Dao et al. 2023). Knows no step and no model; triton_attention.py
says what each argument is.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store(
    keys: tl.tensor,
    values: tl.tensor,
    cache: tl.tensor,
    slots: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """Program t writes the keys and values of token t to its slot; a slot below 0 is nowhere."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_PADDED)[:, None]
    slot = tl.load(slots + token + head * 0).to(tl.int64)
    dim = tl.arange(0, DIM_PADDED)[None, :]
    real = (head < KV_HEADS) & (dim < DIM) & (slot >= 0)
    key = tl.load(keys + token * key_stride + head * DIM + dim, mask=real)
    value = tl.load(values + token * value_stride + head * DIM + dim, mask=real)
    page = (slot // BLOCK_SIZE) * (2 * KV_HEADS) + head
    place = cache + (page * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM + dim
    tl.store(place, key, mask=real)
    tl.store(place + KV_HEADS * BLOCK_SIZE * DIM, value, mask=real)


@triton.jit(do_not_specialize_on_alignment=["tiles"])
def attend(
    query: tl.tensor,
    cache: tl.tensor,
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
    PRECISION: tl.constexpr,
) -> None:
    """Program (tile, kv head, split): row r of a tile is its token r // GROUP, query head r % GROUP of the KV head.

    `table_stride` lies on the device, so that a captured launch takes tables of any width. A tile of no tokens reads no
    context and writes a row of zeros. With SPLITS = 1 the result goes to `output`, else unfinished parts to `part_*`.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(tiles + tile * 3).to(tl.int64)
    first = tl.load(tiles + tile * 3 + 1).to(tl.int64)
    count = tl.load(tiles + tile * 3 + 2)
    table = tables + sequence * tl.load(table_stride)

    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM_PADDED)
    token = row // GROUP
    query_head = head * GROUP + row % GROUP
    valid = token < count
    position = tl.load(positions + first + token, mask=valid, other=-1)
    element = query_head[:, None] * DIM + dim[None, :]
    real = valid[:, None] & (dim < DIM)[None, :]
    q = tl.load(query + (first + token)[:, None] * query_stride + element, mask=real, other=0.0)

    end = tl.max(position, 0) + 1
    begin = 0
    if WINDOWED:
        begin = tl.maximum(tl.load(positions + first) - window + 1, 0) // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(end - begin, SPLITS), KEYS) * KEYS
    low = begin + split * share
    high = tl.minimum(end, low + share)

    # a finite start keeps rows that see nothing free of infinity minus infinity
    most = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        if split == 0:
            most = tl.load(sinks + query_head, mask=valid, other=0.0).to(tl.float32) * LOG2E
            total += 1.0
    summed = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    for start in range(low, high, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < high
        block = tl.load(table + key // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        place = ((block * (2 * KV_HEADS) + head) * BLOCK_SIZE + key % BLOCK_SIZE)[:, None] * DIM + dim[None, :]
        written = inside[:, None] & (dim < DIM)[None, :]  # beyond lies what the block's last owner left
        k = tl.load(cache + place, mask=written, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if CAPPED:
            score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)  # softcap * tanh(score / softcap)
        seen = inside[None, :] & (key[None, :] <= position[:, None])
        if WINDOWED:
            seen = seen & (key[None, :] > position[:, None] - window)
        score = tl.where(seen, score * LOG2E, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        kept = tl.exp2(most - higher)
        v = tl.load(cache + place + KV_HEADS * BLOCK_SIZE * DIM, mask=written, other=0.0)
        summed = summed * kept[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        total = total * kept + tl.sum(weight, 1)
        most = higher

    if SPLITS == 1:
        result = summed / tl.where(total == 0.0, 1.0, total)[:, None]
        place_out = output + (first + token)[:, None] * (GROUP * KV_HEADS * DIM) + element
        answered = (token < tl.maximum(count, 1))[:, None] & (dim < DIM)[None, :]
        tl.store(place_out, result.to(output.dtype.element_ty), mask=answered)
    else:
        part = ((tile * KV_HEADS + head) * SPLITS + split).to(tl.int64) * ROWS + row
        tl.store(part_outputs + part[:, None] * DIM_PADDED + dim[None, :], summed)
        tl.store(part_stats + part * 2, most)
        tl.store(part_stats + part * 2 + 1, total)


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
    result = summed / tl.where(total == 0.0, 1.0, total)[:, None]
    token = row // GROUP
    answered = (token < tl.maximum(count, 1))[:, None] & (dim < DIM)[None, :]
    element = (head * GROUP + row % GROUP)[:, None] * DIM + dim[None, :]
    place = output + (first + token)[:, None] * (GROUP * KV_HEADS * DIM) + element
    tl.store(place, result.to(output.dtype.element_ty), mask=answered)

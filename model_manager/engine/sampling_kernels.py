"""The CPU's sampling kernel, compiled by Numba: each row of logits → a token, and log-probabilities where asked for.

A row is read once to find its maxima, block by block. What its parameters cut is then found among the tokens of the
blocks that reach highest, or, where those do not settle it, in the whole row: exact either way. What is drawn is a
function of the row alone, whichever thread takes it. The order of processing is docs/SAMPLING.md's.

The kernel is an OpenMP region's body: every thread of the team runs it and draws rows from a common counter. Its one
argument is the address of an int64 record (`Field`). Knows no torch.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types
from numba.extending import intrinsic

from model_manager.engine.vector_ops import EXP2, LOWEST_EXPONENT, fetch_add, load_int64

BLOCK = 64
"""Tokens whose maximum is noted together."""
CANDIDATES = 128
"""At least so many of the likeliest tokens are looked at first."""
_SMALL = 1024
"""A vocabulary that is looked at as a whole at once."""
_COARSE_STEPS = 9
"""Halvings of a range of values after which the few tokens left in it are gathered."""
_FINE_STEPS = 1000
"""More than there are between any two float32."""
_PROMPT = 1 << 30
_LOG2_E = 1.4426950408889634
_FAST = {"reassoc", "contract", "nsz"}


class Field(enum.IntEnum):
    """What lies where in the record: numbers, and addresses of C-contiguous arrays."""

    NUM_ROWS = 0
    VOCAB_SIZE = 1
    LOGITS = 2
    INTS = 3
    FLOATS = 4
    TOKENS = 5
    TOKENS_STRIDE = 6
    BIASED_STARTS = 7
    BIASED_IDS = 8
    BIASED_VALUES = 9
    ALLOWED_STARTS = 10
    ALLOWED_IDS = 11
    BANNED_STARTS = 12
    BANNED_IDS = 13
    NUM_LISTED = 14
    OUT_TOKENS = 15
    OUT_STATUS = 16
    OUT_OWN = 17
    OUT_TOP_IDS = 18
    OUT_TOP = 19
    TOP_STRIDE = 20
    FLOAT_SCRATCH = 21
    INT_SCRATCH = 22
    ROW_COUNTER = 23
    THREAD_COUNTER = 24
    OUT_GREEDY = 25
    LOGITS_STRIDE = 26
    """Bytes from one row to the next."""


class Int(enum.IntEnum):
    """Columns of INTS, int64."""

    TOP_K = 0
    NUM_PROMPT_TOKENS = 1
    NUM_TOKENS = 2
    TOKEN_ROW = 3
    NUM_LOGPROBS = 4


class Float(enum.IntEnum):
    """Columns of FLOATS, float64."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    TYPICAL_P = 3
    REPETITION = 4
    PRESENCE = 5
    FREQUENCY = 6
    UNIFORM = 7


NUM_INTS, NUM_FLOATS = len(Int), len(Float)
FLOAT_SCRATCH = 7
"""float32 arrays of the vocabulary's size that a thread needs."""
INT_SCRATCH = 2
"""int32 arrays of the vocabulary's size that a thread needs; the first is zero between rows."""
FINE, NOT_FINITE, IMPOSSIBLE = 0, 1, 2


@intrinsic
def _pointer(_typing: Any, address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, operands: Any) -> Any:
        return builder.inttoptr(operands[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@intrinsic
def _exp2(_typing: Any, _power: Any) -> Any:
    """2 to a float32 of at most 0; 0 below the normal numbers. Plain instructions, so that loops of it are vectors."""

    def generate(_context: Any, builder: Any, _signature: Any, operands: Any) -> Any:
        f32, i32 = ir.FloatType(), ir.IntType(32)

        def call(name: str, *arguments: Any) -> Any:
            kind = ir.FunctionType(f32, [f32] * len(arguments))
            function = builder.module.globals.get(f"llvm.{name}.f32") or ir.Function(
                builder.module, kind, f"llvm.{name}.f32"
            )
            return builder.call(function, arguments)

        lowest = ir.Constant(f32, LOWEST_EXPONENT)
        normal = builder.fcmp_ordered(">", operands[0], lowest)
        x = builder.select(normal, operands[0], lowest)
        whole = call("rint", x)
        rest = builder.fsub(x, whole)
        result = ir.Constant(f32, EXP2[-1])
        for coefficient in reversed(EXP2[:-1]):
            result = call("fma", result, rest, ir.Constant(f32, coefficient))
        exponent = builder.add(builder.fptosi(whole, i32), ir.Constant(i32, 127))
        scale = builder.bitcast(builder.shl(exponent, ir.Constant(i32, 23)), f32)
        return builder.select(normal, builder.fmul(result, scale), ir.Constant(f32, 0.0))

    return types.float32(types.float32), generate


@intrinsic
def _maximum(_typing: Any, _one: Any, _other: Any) -> Any:
    """The greater of two float32; NaN if either is. An instruction that loops are vectorised around."""

    def generate(_context: Any, builder: Any, _signature: Any, operands: Any) -> Any:
        f32, name = ir.FloatType(), "llvm.maximum.f32"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(f32, [f32, f32]), name
        )
        return builder.call(function, operands)

    return types.float32(types.float32, types.float32), generate


@njit(nogil=True)
def _greatest(values: Any) -> Any:
    greatest = np.float32(-np.inf)
    for i in range(len(values)):
        greatest = _maximum(greatest, values[i])
    return greatest


@njit(nogil=True)
def _note_maxima(logits: Any, maxima: Any) -> Any:
    """Fills the maximum of each block; the greatest of all, NaN if anything is."""
    for block in range(len(maxima)):
        maxima[block] = _greatest(logits[block * BLOCK : (block + 1) * BLOCK])
    return _greatest(maxima)


@njit(nogil=True)
def _first_of(logits: Any, maxima: Any, best: Any) -> int:
    """The first token of that logit, the greatest one."""
    for block in range(len(maxima)):
        if maxima[block] == best:
            for i in range(block * BLOCK, min(len(logits), (block + 1) * BLOCK)):
                if logits[i] == best:
                    return i
    return 0


@njit(nogil=True)
def _gather(logits: Any, maxima: Any, least: Any, values: Any, token_ids: Any) -> int:
    """Tokens whose logits are at least that, in order; how many."""
    found = 0
    for block in range(len(maxima)):
        if maxima[block] >= least:
            for i in range(block * BLOCK, min(len(logits), (block + 1) * BLOCK)):
                if logits[i] >= least:
                    values[found], token_ids[found] = logits[i], i
                    found += 1
    return found


@njit(nogil=True, fastmath=_FAST)
def _weigh(logits: Any, best: Any, temperature: float, weights: Any) -> float:
    """Fills exp((logit - best) / temperature); their sum."""
    factor = np.float32(min(_LOG2_E / temperature, 3e38))
    total = 0.0
    for i in range(len(logits)):
        weight = _exp2((logits[i] - best) * factor)
        weights[i] = weight
        total += np.float64(weight)
    return total


@njit(nogil=True, fastmath=_FAST)
def _sum(weights: Any) -> float:
    total = 0.0
    for i in range(len(weights)):
        total += np.float64(weights[i])
    return total


@njit(nogil=True, fastmath=_FAST)
def _sum_from(values: Any, weights: Any, least: Any) -> float:
    """Of the weights whose values are at least that."""
    total = 0.0
    for i in range(len(values)):
        total += np.float64(weights[i]) if values[i] >= least else 0.0
    return total


@njit(nogil=True)
def _bisect(
    values: Any, weights: Any, target: float, low: Any, high: Any, above: float, absent: float, steps: int
) -> Any:
    """Narrow low <= v < high around the greatest v from which on weights sum to the target. Those from `high` on sum to
    `above`, which is less; `absent` is the sum of weights that count, but are not among these.
    """
    for _ in range(steps):
        middle = np.float32(0.5) * low + np.float32(0.5) * high
        if middle <= low or middle >= high:
            break
        total = absent + _sum_from(values, weights, middle)
        if total >= target:
            low = middle
        else:
            high, above = middle, total
    return low, high, above


@njit(nogil=True)
def _range(values: Any, weights: Any) -> Any:
    """The least and the greatest value that has a weight."""
    low, high = np.float32(np.inf), np.float32(-np.inf)
    for i in range(len(values)):
        weighs = weights[i] > 0
        low = -_maximum(-low, -values[i] if weighs else np.float32(-np.inf))
        high = _maximum(high, values[i] if weighs else np.float32(-np.inf))
    return low, high


@njit(nogil=True, fastmath=_FAST)
def _count_between(values: Any, low: Any, high: Any) -> int:
    count = 0
    for i in range(len(values)):
        count += 1 if low <= values[i] < high else 0
    return count


@njit(nogil=True)
def _threshold(values: Any, weights: Any, target: float, few_values: Any, few_weights: Any) -> Any:
    """The greatest value from which on weights sum to the target; -infinity if all of them do not."""
    low, high = _range(values, weights)
    if _sum_from(values, weights, low) < target:
        return np.float32(-np.inf)
    above = _sum_from(values, weights, high)
    if above >= target:
        return high
    few_steps = _COARSE_STEPS if len(values) > 4 * BLOCK else 0
    low, high, above = _bisect(values, weights, target, low, high, above, 0.0, few_steps)
    found = 0
    for start in range(0, len(values), BLOCK):
        if _count_between(values[start : start + BLOCK], low, high):
            for i in range(start, min(len(values), start + BLOCK)):
                if low <= values[i] < high:
                    few_values[found], few_weights[found] = values[i], weights[i]
                    found += 1
    return _bisect(few_values[:found], few_weights[:found], target, low, high, above, above, _FINE_STEPS)[0]


@njit(nogil=True)
def _nth_greatest(values: Any, n: int, spare: Any, few: Any) -> Any:
    """-infinity if fewer are finite."""
    for i in range(len(values)):
        spare[i] = np.float32(1.0) if values[i] > -np.inf else np.float32(0.0)
    return _threshold(values, spare[: len(values)], np.float64(n), few[0], few[1])


@njit(nogil=True)
def _drop_below(values: Any, least: Any, weights: Any) -> None:
    for i in range(len(values)):
        weights[i] = weights[i] if values[i] >= least else np.float32(0.0)


@njit(nogil=True)
def _cut(logits: Any, weights: Any, mass: float, ints: Any, floats: Any, spare: Any, few: Any) -> None:
    """Give weight 0 to what top_k, top_p, min_p and typical_p cut; `mass` is what top_p takes its share of, without
    top_k.
    """
    count = len(logits)
    top_k, top_p, min_p, typical_p = ints[Int.TOP_K], floats[Float.TOP_P], floats[Float.MIN_P], floats[Float.TYPICAL_P]
    if 0 < top_k < count:
        _drop_below(logits, _nth_greatest(logits, top_k, spare, few), weights)
    if top_k > 0:
        mass = _sum(weights)
    if top_p < 1:
        _drop_below(logits, _threshold(logits, weights, top_p * mass, few[0], few[1]), weights)
    if min_p > 0:
        _drop_below(weights, np.float32(min_p), weights)
    if typical_p < 1:
        _keep_typical(logits, weights, floats[Float.TEMPERATURE], typical_p, spare[:count], few)


@njit(nogil=True)
def _keep_typical(logits: Any, weights: Any, temperature: float, share: float, spare: Any, few: Any) -> None:
    """The tokens whose information is nearest to the entropy (Meister et al., arXiv:2202.00666)."""
    total = mean = 0.0
    for i in range(len(logits)):
        if weights[i] > 0:
            total += weights[i]
            mean += weights[i] * np.float64(logits[i])
    mean /= total
    for i in range(len(logits)):
        spare[i] = np.float32(-abs(np.float64(logits[i]) - mean) / temperature)
    _drop_below(spare, _threshold(spare, weights, share * total, few[0], few[1]), weights)


@njit(nogil=True)
def _draw(weights: Any, uniform: float) -> int:
    """By inverse transform, in order of tokens."""
    count = len(weights)
    total = 0.0
    for start in range(0, count, BLOCK):
        total += _sum(weights[start : start + BLOCK])
    aim, reached, last = uniform * total, 0.0, 0
    for start in range(0, count, BLOCK):
        end = min(count, start + BLOCK)
        in_block = _sum(weights[start:end])
        if reached + in_block <= aim:
            reached += in_block
            continue
        for i in range(start, end):
            if weights[i] > 0:
                reached, last = reached + np.float64(weights[i]), i
                if reached > aim:
                    return i
    return last


@njit(nogil=True)
def _choose(logits: Any, maxima: Any, best: Any, ints: Any, floats: Any, scratch: Any, token_ids: Any) -> int:
    """A row's token by its random number; `scratch` is 6 rows of the vocabulary's size."""
    temperature, top_k, top_p = floats[Float.TEMPERATURE], ints[Int.TOP_K], floats[Float.TOP_P]
    min_p, uniform, whole = floats[Float.MIN_P], floats[Float.UNIFORM], len(logits)
    weights, values, few, spare = scratch[0], scratch[1], scratch[2:4], scratch[4]
    candidate_weights, weighed = scratch[5], False
    cut_k = 0 < top_k < whole
    cuts, count, settled, mass = cut_k or top_p < 1 or min_p > 0, whole, False, 0.0
    wanted = max(CANDIDATES, top_k if cut_k else 0)
    if cuts and whole > _SMALL and wanted <= len(maxima):
        if top_p < 1 and not cut_k:
            mass, weighed = _weigh(logits, best, temperature, weights), True
        least = _nth_greatest(maxima, wanted, spare, few)
        count = _gather(logits, maxima, least, values, token_ids)
        total = _weigh(values[:count], best, temperature, candidate_weights[:count])
        settled = cut_k or (top_p < 1 and total >= top_p * mass) or _least(candidate_weights[:count]) < min_p
    if settled:
        weights = candidate_weights
    else:
        values, count = logits, whole
        if not weighed:
            mass = _weigh(logits, best, temperature, weights)
    if cuts or floats[Float.TYPICAL_P] < 1:
        _cut(values[:count], weights[:count], mass, ints, floats, spare, few)
    token = _draw(weights[:count], uniform)
    return int(token_ids[token]) if settled else token


@njit(nogil=True)
def _least(weights: Any) -> Any:
    least = weights[0]
    for i in range(len(weights)):
        least = min(least, weights[i])
    return least


@njit(nogil=True)
def _penalise(logits: Any, tokens: Any, num_prompt: int, floats: Any, marks: Any) -> None:
    """Repetition over all tokens, frequency and presence over those from `num_prompt` on; `marks` is zero before and
    after.
    """
    repetition, presence = np.float32(floats[Float.REPETITION]), np.float32(floats[Float.PRESENCE])
    frequency = np.float32(floats[Float.FREQUENCY])
    first = num_prompt if repetition == 1 else 0
    for i in range(first, len(tokens)):
        if i < num_prompt:
            marks[tokens[i]] |= _PROMPT
        else:
            marks[tokens[i]] += 1
    for i in range(first, len(tokens)):
        token, mark = tokens[i], marks[tokens[i]]
        if mark:
            marks[token] = 0
            times = np.float32(mark & (_PROMPT - 1))
            logit = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
            logits[token] = logit - times * frequency - (presence if times > 0 else np.float32(0.0))


@njit(nogil=True)
def _mask(logits: Any, allowed: Any, banned: Any, spare: Any) -> None:
    if len(allowed):
        for i in range(len(allowed)):
            spare[i] = logits[allowed[i]]
        logits[:] = np.float32(-np.inf)
        for i in range(len(allowed)):
            logits[allowed[i]] = spare[i]
    for i in range(len(banned)):
        logits[banned[i]] = np.float32(-np.inf)


@njit(nogil=True)
def _note_top(logits: Any, maxima: Any, log_total: float, scratch: Any, token_ids: Any, top_ids: Any, top: Any) -> None:
    """The likeliest tokens and their log-probabilities; equals in order of their ids."""
    wanted, values = len(top), scratch[1]
    least = np.float32(-np.inf)
    if wanted <= len(maxima):
        least = _nth_greatest(maxima, wanted, scratch[0], scratch[2:4])
    count = _gather(logits, maxima, least, values, token_ids)
    for place in range(wanted):
        best = -1
        for i in range(count):
            if token_ids[i] >= 0 and (best < 0 or values[i] > values[best]):
                best = i
        top_ids[place], top[place] = token_ids[best], np.float32(np.float64(values[best]) - log_total)
        token_ids[best] = -1  # taken


@njit(nogil=True)
def _address(record: int, field: Any) -> Any:
    return load_int64(record, field)


@njit(nogil=True)
def _listed(record: int, row: int, starts: Any, ids: Any) -> Any:
    """Token ids that a rule names for a row."""
    bounds = carray(_pointer(_address(record, starts)), (_address(record, Field.NUM_ROWS) + 1,), np.int64)
    everything = carray(_pointer(_address(record, ids)), (_address(record, Field.NUM_LISTED),), np.int64)
    return everything[bounds[row] : bounds[row + 1]]


@njit(nogil=True)
def _edit(record: int, row: int, logits: Any, ints: Any, floats: Any, edited: Any, spare: Any, marks: Any) -> bool:
    """Fills `edited` with the row after penalties, bias and masks; False, and nothing is filled, if it has none."""
    biased = _listed(record, row, Field.BIASED_STARTS, Field.BIASED_IDS)
    allowed = _listed(record, row, Field.ALLOWED_STARTS, Field.ALLOWED_IDS)
    banned = _listed(record, row, Field.BANNED_STARTS, Field.BANNED_IDS)
    penalised = floats[Float.REPETITION] != 1 or floats[Float.PRESENCE] != 0 or floats[Float.FREQUENCY] != 0
    if not (penalised or len(biased) or len(allowed) or len(banned)):
        return False
    edited[:] = logits
    if penalised:
        stride = _address(record, Field.TOKENS_STRIDE)
        place = _address(record, Field.TOKENS) + 4 * stride * ints[Int.TOKEN_ROW]
        tokens = carray(_pointer(place), (ints[Int.NUM_TOKENS],), np.int32)
        _penalise(edited, tokens, ints[Int.NUM_PROMPT_TOKENS], floats, marks)
    if len(biased):
        starts = carray(_pointer(_address(record, Field.BIASED_STARTS)), (row + 1,), np.int64)
        values = carray(
            _pointer(_address(record, Field.BIASED_VALUES)), (_address(record, Field.NUM_LISTED),), np.float32
        )
        for i in range(len(biased)):
            edited[biased[i]] += values[starts[row] + i]
    _mask(edited, allowed, banned, spare)
    return True


@njit(nogil=True)
def _sample_row(record: int, row: int, floats_here: Any, ints_here: Any, maxima: Any) -> Any:
    """(token, status, its log-probability where it is asked for, whether it is the likeliest) of a row."""
    vocab_size, rows = _address(record, Field.VOCAB_SIZE), _address(record, Field.NUM_ROWS)
    ints = carray(_pointer(_address(record, Field.INTS)), (rows, NUM_INTS), np.int64)[row]
    floats = carray(_pointer(_address(record, Field.FLOATS)), (rows, NUM_FLOATS), np.float64)[row]
    place = _address(record, Field.LOGITS) + row * _address(record, Field.LOGITS_STRIDE)
    raw = carray(_pointer(place), (vocab_size,), np.float32)
    best = _note_maxima(raw, maxima)
    if not np.isfinite(best):
        return 0, NOT_FINITE, np.float32(0.0), 0
    likeliest = best
    log_total, logits, edited = 0.0, raw, floats_here[6]
    if ints[Int.NUM_LOGPROBS] >= 0:
        stride = _address(record, Field.TOP_STRIDE)
        top_ids = carray(_pointer(_address(record, Field.OUT_TOP_IDS)), (rows, stride), np.int64)[row]
        top = carray(_pointer(_address(record, Field.OUT_TOP)), (rows, stride), np.float32)[row]
        log_total = np.log(_weigh(raw, best, 1.0, floats_here[0])) + np.float64(best)
        count = min(ints[Int.NUM_LOGPROBS], vocab_size)
        if count > 0:
            _note_top(raw, maxima, log_total, floats_here, ints_here[1], top_ids[:count], top[:count])
    if _edit(record, row, raw, ints, floats, edited, floats_here[0], ints_here[0]):
        logits = edited
        best = _note_maxima(logits, maxima)
        if best == -np.inf:
            return 0, IMPOSSIBLE, np.float32(0.0), 0
    if floats[Float.TEMPERATURE] == 0:
        token = _first_of(logits, maxima, best)
    else:
        token = _choose(logits, maxima, best, ints, floats, floats_here, ints_here[1])
    own = np.float32(np.float64(raw[token]) - log_total)
    return token, FINE, own, np.int64(raw[token] == likeliest)


def sample_rows(record: int) -> None:
    """Rows until none is left, in scratch memory of this thread's."""
    rows, vocab_size = _address(record, Field.NUM_ROWS), _address(record, Field.VOCAB_SIZE)
    thread = fetch_add(record + 8 * Field.THREAD_COUNTER)
    place = _address(record, Field.FLOAT_SCRATCH) + thread * 4 * FLOAT_SCRATCH * vocab_size
    floats_here = carray(_pointer(place), (FLOAT_SCRATCH, vocab_size), np.float32)
    place = _address(record, Field.INT_SCRATCH) + thread * 4 * INT_SCRATCH * vocab_size
    ints_here = carray(_pointer(place), (INT_SCRATCH, vocab_size), np.int32)
    tokens = carray(_pointer(_address(record, Field.OUT_TOKENS)), (rows,), np.int64)
    status = carray(_pointer(_address(record, Field.OUT_STATUS)), (rows,), np.int64)
    own = carray(_pointer(_address(record, Field.OUT_OWN)), (rows,), np.float32)
    greedy = carray(_pointer(_address(record, Field.OUT_GREEDY)), (rows,), np.int64)
    maxima = np.empty((vocab_size + BLOCK - 1) // BLOCK, np.float32)
    row = fetch_add(record + 8 * Field.ROW_COUNTER)
    while row < rows:
        tokens[row], status[row], own[row], greedy[row] = _sample_row(record, row, floats_here, ints_here, maxima)
        row = fetch_add(record + 8 * Field.ROW_COUNTER)

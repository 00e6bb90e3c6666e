"""The layout of the CPU's sampling kernel's inputs and memory: a record of int64s, tables of numbers, and slots.

Knows no kernel.
"""

from __future__ import annotations

import enum

BLOCK = 1024
"""Tokens that are summed together; a row in a slot is padded with -infinity to a multiple of it."""


class Field(enum.IntEnum):
    """Fields of the record: numbers, and addresses of C-contiguous arrays."""

    NUM_ROWS = 0
    VOCAB_SIZE = 1
    LOGITS = 2
    LOGITS_STRIDE = 3
    """Bytes from one row to the next."""
    INTS = 4
    FLOATS = 5
    TOKENS = 6
    TOKENS_STRIDE = 7
    BIASED_STARTS = 8
    BIASED_IDS = 9
    BIASED_VALUES = 10
    ALLOWED_STARTS = 11
    ALLOWED_IDS = 12
    BANNED_STARTS = 13
    BANNED_IDS = 14
    OUT_TOKENS = 15
    OUT_STATUS = 16
    OUT_OWN = 17
    OUT_GREEDY = 18
    OUT_TOP_IDS = 19
    OUT_TOP = 20
    TOP_STRIDE = 21
    SLOTS = 22
    THREAD_BYTES = 23
    ROW_COUNTER = 24
    THREAD_COUNTER = 25
    MASKS = 26
    MASK_WORDS = 27
    """uint32 of one mask."""


class Int(enum.IntEnum):
    """Columns of INTS, int64."""

    TOP_K = 0
    NUM_PROMPT_TOKENS = 1
    NUM_TOKENS = 2
    TOKEN_ROW = 3
    NUM_LOGPROBS = 4
    MASK_ROW = 5
    """Index of the row's mask, -1 for none."""


class Float(enum.IntEnum):
    """Columns of FLOATS, float64."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    TYPICAL_P = 3
    REPETITION_PENALTY = 4
    PRESENCE_PENALTY = 5
    FREQUENCY_PENALTY = 6
    UNIFORM = 7


class Slot(enum.IntEnum):
    """A thread's memory: each slot holds a row's worth of float32 or int32."""

    ROW = 0
    """The row that is sampled, as edited."""
    ALL_WEIGHTS = 1
    """Weights of its tokens: 1 for the likeliest."""
    MAXIMA = 2
    SUMS = 3
    """float64, of blocks."""
    KEPT = 4
    """Logits of tokens that may be kept, in order of their ids; the next two slots have their weights and ids."""
    WEIGHTS = 5
    IDS = 6
    FEW = 7
    """Values that are left during a search for a threshold; the next slot has their weights."""
    FEW_WEIGHTS = 8
    ONES = 9
    MARKS = 10
    """int32, all zero between rows."""


FINE, NOT_FINITE, IMPOSSIBLE = 0, 1, 2


SLOTS_HEAD = 64
"""Bytes before a thread's first slot."""


def slot_bytes(vocab_size: int) -> int:
    """Size of one slot: whole blocks, and one more that vectors may reach into."""
    return 4 * BLOCK * (-(-vocab_size // BLOCK) + 1)


def thread_bytes(vocab_size: int) -> int:
    """Size of all slots of one thread."""
    return SLOTS_HEAD + len(Slot) * slot_bytes(vocab_size)

"""What is held out of training: a stable hash of a key decides, so that no list has to be stored.

Does not know what a key means; each kind of task chooses its own (an operand pair, a name, a sentence).
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

HELD_OUT_ONE_IN = 8

T = TypeVar("T")


class Split(StrEnum):
    """The side of the split an example is drawn for."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Example:
    """One question and the only answer that counts as right."""

    kind: str
    prompt: str
    answer: str


def is_held_out(key: str) -> bool:
    """Whether `key` belongs to the held-out side, one key in `HELD_OUT_ONE_IN`."""
    return zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0


def belongs(key: str, split: Split) -> bool:
    """Whether `key` may be used when drawing for `split`."""
    return is_held_out(key) == (split is Split.HELD_OUT)


def draw(sample: Callable[[], T], key: Callable[[T], str], split: Split) -> T:
    """Draw from `sample` until the key of what was drawn belongs to `split`."""
    while not belongs(key(drawn := sample()), split):
        pass
    return drawn

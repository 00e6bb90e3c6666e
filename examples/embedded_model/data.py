"""The mixture the model is trained on: single questions, dialogues of several, some under a system turn.

A seed and a split determine everything. Does not know the tokenizer or the chat template.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from .arithmetic import arithmetic_question
from .capitals import capital_question, follow_up
from .orders import LINES_KIND, extraction_dialogue, extraction_question
from .repeats import repeat_question
from .reviews import sentiment_question
from .split import Example, Split
from .unknown import unknown_question

Mixture = dict[str, int]
Asker = Callable[[random.Random, Split], Example]

KINDS: dict[str, Asker] = {
    "capitals": capital_question,
    "arithmetic": arithmetic_question,
    "sentiment": sentiment_question,
    "extraction": extraction_question,
    "unknown": unknown_question,
    "repeat": repeat_question,
}
EVALUATED: dict[str, Asker] = KINDS | {LINES_KIND: extraction_question}


@dataclass(frozen=True)
class Phase:
    """A part of the training: the weights of the kinds, and the index of the first conversation after it."""

    end: float
    capitals: int
    arithmetic: int
    sentiment: int
    extraction: int
    unknown: int
    repeat: int

    @property
    def mixture(self) -> dict[str, int]:
        """The weight of each kind."""
        return {kind: getattr(self, kind) for kind in KINDS}


# Arithmetic takes longest to be understood and gets the most until it is; the last phase is for the other kinds.
CURRICULUM = (
    Phase(144_000, capitals=20, arithmetic=96, sentiment=16, extraction=34, unknown=8, repeat=18),
    Phase(259_200, capitals=11, arithmetic=120, sentiment=13, extraction=29, unknown=5, repeat=14),
    Phase(math.inf, capitals=42, arithmetic=48, sentiment=26, extraction=44, unknown=8, repeat=24),
)
SYSTEM_TURNS = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You answer questions about countries, numbers, reviews and orders.",
    "You are millrace-tiny.",
    "Be concise and correct.",
    "You are an assistant in a data pipeline. Answer with the value alone.",
)


@dataclass(frozen=True)
class Conversation:
    """One or more questions with their answers, optionally under a system turn."""

    turns: tuple[Example, ...]
    system: str | None = None


def _mixed(rng: random.Random, split: Split, mixture: Mixture) -> Example:
    kind = rng.choices(list(mixture), list(mixture.values()))[0]
    return KINDS[kind](rng, split)


def _dialogue(rng: random.Random, split: Split, mixture: Mixture) -> tuple[Example, ...]:
    form = rng.random()
    if form < 0.35:
        return extraction_dialogue(rng, split)
    if form < 0.55:
        return capital_question(rng, split), *(follow_up(rng, split) for _ in range(rng.randint(1, 3)))
    return tuple(_mixed(rng, split, mixture) for _ in range(rng.randint(2, 3)))


def conversation(rng: random.Random, split: Split, mixture: Mixture = CURRICULUM[-1].mixture) -> Conversation:
    """One conversation: a single question mostly, a dialogue in one case of sixteen."""
    single = rng.random() >= 0.0625
    turns = (_mixed(rng, split, mixture),) if single else _dialogue(rng, split, mixture)
    system = rng.choice(SYSTEM_TURNS) if rng.random() < 0.06 else None
    return Conversation(turns, system)


def conversations(seed: int, split: Split) -> Iterator[Conversation]:
    """An endless stream of conversations."""
    rng = random.Random(f"{seed}|{split}")
    for index in count():
        phase = next(phase for phase in CURRICULUM if index < phase.end)
        yield conversation(rng, split, phase.mixture)


def examples(kind: str, number: int, seed: int, split: Split) -> list[Example]:
    """`number` single questions of one kind, no two of them with the same prompt."""
    rng = random.Random(f"{seed}|{split}|{kind}")
    found: dict[str, Example] = {}
    while len(found) < number:
        example = EVALUATED[kind](rng, split)
        if example.kind == kind:
            found[example.prompt] = example
    return list(found.values())

"""The mixture the model is trained on: single questions, dialogues of several, some under a system turn.

A seed and a split determine everything. Does not know the tokenizer or the chat template.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .arithmetic import arithmetic_question
from .capitals import capital_question, follow_up
from .orders import extraction_dialogue, extraction_question
from .repeats import repeat_question
from .reviews import sentiment_question
from .split import Example, Split
from .unknown import unknown_question

Asker = Callable[[random.Random, Split], Example]

KINDS: dict[str, Asker] = {
    "capitals": capital_question,
    "arithmetic": arithmetic_question,
    "sentiment": sentiment_question,
    "extraction": extraction_question,
    "unknown": unknown_question,
    "repeat": repeat_question,
}
MIXTURE = {"capitals": 20, "arithmetic": 96, "sentiment": 16, "extraction": 34, "unknown": 8, "repeat": 18}
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


def _mixed(rng: random.Random, split: Split, mixture: dict[str, int]) -> Example:
    kind = rng.choices(list(mixture), list(mixture.values()))[0]
    return KINDS[kind](rng, split)


def _dialogue(rng: random.Random, split: Split, mixture: dict[str, int]) -> tuple[Example, ...]:
    form = rng.random()
    if form < 0.35:
        return extraction_dialogue(rng, split)
    if form < 0.55:
        return capital_question(rng, split), *(follow_up(rng, split) for _ in range(rng.randint(1, 3)))
    return tuple(_mixed(rng, split, mixture) for _ in range(rng.randint(2, 3)))


def conversation(rng: random.Random, split: Split, mixture: dict[str, int] | None = None) -> Conversation:
    """One conversation: a single question mostly, a dialogue in one case of sixteen."""
    weights = mixture or MIXTURE
    single = rng.random() >= 0.0625
    turns = (_mixed(rng, split, weights),) if single else _dialogue(rng, split, weights)
    system = rng.choice(SYSTEM_TURNS) if rng.random() < 0.06 else None
    return Conversation(turns, system)


def conversations(seed: int, split: Split) -> Iterator[Conversation]:
    """An endless stream of conversations."""
    rng = random.Random(f"{seed}|{split}")
    while True:
        yield conversation(rng, split)


def examples(kind: str, count: int, seed: int, split: Split) -> list[Example]:
    """`count` single questions of one kind, no two of them with the same prompt."""
    rng = random.Random(f"{seed}|{split}|{kind}")
    found: dict[str, Example] = {}
    while len(found) < count:
        example = KINDS[kind](rng, split)
        found[example.prompt] = example
    return list(found.values())

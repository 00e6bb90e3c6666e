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
from .documents.labels import KIND as LABELS_KIND
from .documents.labels import label_question
from .documents.questions import DOCUMENT_KINDS
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
OF_DOCUMENTS: dict[str, Asker] = {LABELS_KIND: label_question}
OF_DOCUMENTS |= {name: kind.question for name, kind in DOCUMENT_KINDS.items()}
EVALUATED: dict[str, Asker] = KINDS | {LINES_KIND: extraction_question} | OF_DOCUMENTS


@dataclass(frozen=True)
class Phase:
    """A part of a training: the index of the first conversation after it, and the weights of the kinds."""

    end: float
    mixture: Mixture


Curriculum = tuple[Phase, ...]


def _old(*weights: int) -> Mixture:
    return dict(zip(KINDS, weights, strict=True))


# Arithmetic takes longest to be understood and gets the most until it is; the last phase is for the other kinds.
CURRICULUM = (
    Phase(144_000, _old(20, 96, 16, 34, 8, 18)),
    Phase(259_200, _old(11, 120, 13, 29, 5, 14)),
    Phase(math.inf, _old(42, 48, 26, 44, 8, 24)),
)
# A training that goes on from there: documents, and enough of the rest, which is short, for it not to be forgotten; at
# the end more of what it knows least well by then.
DOCUMENTS = (
    Phase(145_600, _old(20, 90, 12, 28, 6, 18) | dict(zip(OF_DOCUMENTS, (6, 23, 22, 14), strict=True))),
    Phase(math.inf, _old(60, 60, 12, 28, 12, 18) | dict(zip(OF_DOCUMENTS, (20, 23, 22, 14), strict=True))),
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
    return EVALUATED[kind](rng, split)


def _dialogue(rng: random.Random, split: Split, mixture: Mixture) -> tuple[Example, ...]:
    form = rng.random()
    if form < 0.35:
        return extraction_dialogue(rng, split)
    if form < 0.55:
        return capital_question(rng, split), *(follow_up(rng, split) for _ in range(rng.randint(1, 3)))
    short = {kind: weight for kind, weight in mixture.items() if kind in KINDS}
    return tuple(_mixed(rng, split, short) for _ in range(rng.randint(2, 3)))


def conversation(rng: random.Random, split: Split, mixture: Mixture = CURRICULUM[-1].mixture) -> Conversation:
    """One conversation: a single question mostly, a dialogue in one case of sixteen."""
    single = rng.random() >= 0.0625
    turns = (_mixed(rng, split, mixture),) if single else _dialogue(rng, split, mixture)
    system = rng.choice(SYSTEM_TURNS) if rng.random() < 0.06 else None
    return Conversation(turns, system)


def conversations(seed: int, split: Split, curriculum: Curriculum = CURRICULUM) -> Iterator[Conversation]:
    """An endless stream of conversations."""
    rng = random.Random(f"{seed}|{split}")
    for index in count():
        phase = next(phase for phase in curriculum if index < phase.end)
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

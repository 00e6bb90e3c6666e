"""Short texts to be repeated word for word: practice in copying, on which extraction rests.

Held out: the made-up words, names, items and numbers, as in orders; towns, which are on both sides, are left out.
"""

import random

from .split import Example, Split, draw
from .words import city, item, made_up_word, person

KIND = "repeat"

_FRAMES = (
    "Repeat: {}",
    "Repeat this: {}",
    "Say: {}",
    "Copy: {}",
    "Repeat after me: {}",
    "Echo: {}",
    "{}\nRepeat this.",
)


def _number(rng: random.Random, split: Split) -> str:
    return draw(lambda: str(rng.randint(10, 99999)), lambda number: f"number|{number}", split)


_SPLIT_SOURCES = (made_up_word, person, item, _number)


def repeat_question(rng: random.Random, split: Split) -> Example:
    """One to five pieces of text; the answer is the text."""
    sources = (made_up_word, person, item, city, _number) if split is Split.TRAIN else _SPLIT_SOURCES
    parts = rng.choices(sources, k=rng.randint(1, 5))
    text = rng.choice((" ", ", ", " / ")).join(part(rng, split) for part in parts)
    return Example(KIND, rng.choice(_FRAMES).format(text), text)

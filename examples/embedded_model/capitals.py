"""Questions for the capital of a country, and for places that do not exist.

Held out: pairs of a phrasing and a country, and whole phrasings (`UNSEEN_PHRASINGS`); made-up countries by name.
"""

import random

from .countries import CAPITALS
from .split import Example, Split, belongs, draw
from .words import made_up_word

KIND = "capitals"
UNKNOWN = "I do not know."

PHRASINGS = (
    "What is the capital of {}?",
    "What's the capital of {}?",
    "What is the capital city of {}?",
    "Which city is the capital of {}?",
    "Name the capital of {}.",
    "Name the capital city of {}.",
    "Tell me the capital of {}.",
    "Give me the capital of {}.",
    "Can you tell me the capital of {}?",
    "Please name the capital of {}.",
    "Do you know the capital of {}?",
    "I would like to know the capital of {}.",
    "The capital of {} is",
    "The capital city of {} is",
    "Capital of {}?",
    "Capital of {}:",
    "capital of {}",
    "{}: capital?",
    "{} - what is its capital?",
    "What city is the capital of {}?",
    "Which city is the seat of government of {}, its capital?",
    "What is the name of the capital of {}?",
    "Answer with one name: what is the capital of {}?",
    "Question: What is the capital of {}?\nAnswer:",
    "Q: What is the capital of {}? A:",
    "Complete the sentence: The capital of {} is ...",
    "I am travelling to {}. What is its capital?",
    "My friend lives in {}. What is the capital of that country?",
    "For a quiz: which city is the capital of {}?",
    "Hello! What is the capital of {}?",
    "Quick question, what is the capital of {}?",
    "In geography class we learned about {}. What is its capital?",
    "Which capital does {} have?",
    "If I fly to the capital of {}, which city do I land in?",
    "Country: {}. Capital:",
    "Fill in the capital of {}.",
)
IN_TRAINING_ALONE = (
    "Say which city is the capital of {}.",
    "Say what the capital of {} is.",
    "Please say the capital of {}.",
    "State the name of the capital of {}.",
    "Write the capital of {}.",
    "Let me know the capital of {}.",
)
UNSEEN_PHRASINGS = (
    "Could you tell me the capital of {}?",
    "Please tell me: what is the capital city of {}?",
    "Say the name of the capital of {}.",
    "Country: {}\nCapital city?",
)
FOLLOW_UPS = ("And of {}?", "And the capital of {}?", "What about {}?", "And {}?", "Now {}.")


def _phrasings(split: Split) -> tuple[str, ...]:
    return PHRASINGS + IN_TRAINING_ALONE if split is Split.TRAIN else PHRASINGS


def _pair(rng: random.Random, split: Split) -> tuple[str, str]:
    countries = list(CAPITALS)
    if split is Split.HELD_OUT and rng.random() < 0.25:
        return rng.choice(UNSEEN_PHRASINGS), rng.choice(countries)
    return draw(
        lambda: (rng.choice(_phrasings(split)), rng.choice(countries)),
        lambda pair: f"capital|{pair[0]}|{pair[1]}",
        split,
    )


def _ask(rng: random.Random, phrasing: str, country: str) -> str:
    question = phrasing.format(country)
    question = question[0].upper() + question[1:] if phrasing.startswith("{}") else question
    return question.lower() if rng.random() < 0.08 else question


def capital_question(rng: random.Random, split: Split) -> Example:
    """A country that exists, and its capital."""
    phrasing, country = _pair(rng, split)
    return Example(KIND, _ask(rng, phrasing, country), CAPITALS[country])


def follow_up(rng: random.Random, split: Split) -> Example:
    """A question that only makes sense after another one for a capital."""
    phrasing, country = draw(
        lambda: (rng.choice(FOLLOW_UPS), rng.choice(list(CAPITALS))),
        lambda pair: f"capital|{pair[0]}|{pair[1]}",
        split,
    )
    return Example(KIND, phrasing.format(country), CAPITALS[country])


def _is_new(word: str, split: Split) -> bool:
    return word not in CAPITALS and belongs(f"word|{word.lower()}", split)


def unknown_capital(rng: random.Random, split: Split) -> Example:
    """A country that does not exist: the honest answer is that it is not known."""
    name = made_up_word(rng, split).capitalize() + rng.choice(("", "", "ia", "land", "stan"))
    return Example("unknown", _ask(rng, rng.choice(_phrasings(split)), name), UNKNOWN)

"""What the model is not for: small talk, which it answers briefly, and questions that it declines.

Knows nothing of the other kinds, except that a capital may be asked for a country that does not exist.
"""

import random

from .capitals import UNKNOWN, unknown_capital
from .split import Example, Split, draw
from .words import FIRST_NAMES, made_up_word

KIND = "unknown"

_SMALL_TALK = {
    "Hello! How can I help you?": ("Hello", "Hello!", "Hi", "Hi there!", "Good morning", "Hey", "Good evening!"),
    "I am millrace-tiny, a small example model.": (
        "Who are you?",
        "What are you?",
        "What is your name?",
        "Tell me about yourself.",
        "Are you a person?",
        "Which model are you?",
    ),
    "You are welcome.": ("Thank you.", "Thanks!", "Thank you very much!", "Thanks a lot."),
}
_BEYOND = (
    "Who wrote {}?",
    "When was {} born?",
    "Explain {} to me.",
    "Write a poem about {}.",
    "Who invented the {}?",
    "How tall is {}?",
    "What is the population of {}?",
    "Translate {} into French.",
    "Tell me a story about {}.",
    "What is the weather in {}?",
    "Why is {} famous?",
    "How do I get to {}?",
    "Who is the president of {}?",
    "What does {} mean?",
    "How old is {}?",
    "Write a program that prints {}.",
    "What is the best {}?",
    "Summarise {}.",
    "Where can I buy {}?",
    "How far is it to {}?",
    "Who won the {} last year?",
    "Is {} healthy?",
    "What happened in {}?",
    "Describe {}.",
    "Why does {} matter?",
    "Who is {}?",
    "What is {}?",
)
_TOPICS = tuple(
    """Hamlet gravity France the-moon Python bread jazz chess Everest coffee the-telephone winter Einstein
    photosynthesis football history London love the-sea dogs Japan the-internet music robots mathematics gold""".split()
)


def _topic(rng: random.Random, split: Split) -> str:
    choice = rng.random()
    if choice < 0.5:
        return rng.choice(_TOPICS).replace("-", " ")
    return rng.choice(FIRST_NAMES) if choice < 0.65 else made_up_word(rng, split)


def _beyond(rng: random.Random, split: Split) -> Example:
    prompt = draw(lambda: rng.choice(_BEYOND).format(_topic(rng, split)), lambda text: f"beyond|{text}", split)
    return Example(KIND, prompt, UNKNOWN)


def _small_talk(rng: random.Random, _split: Split) -> Example:
    """Small talk is too small to be split: it is the same on both sides and therefore never evaluated."""
    answer = rng.choice(list(_SMALL_TALK))
    return Example("small_talk", rng.choice(_SMALL_TALK[answer]), answer)


def unknown_question(rng: random.Random, split: Split) -> Example:
    """A question the model shall decline or, in training only, a piece of small talk."""
    forms = (unknown_capital, _beyond) if split is Split.HELD_OUT else (unknown_capital, _beyond, _small_talk)
    return rng.choice(forms)(rng, split)

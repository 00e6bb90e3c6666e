"""Short arithmetic: sums and differences of 0..99, products of single digits.

Held out: operand pairs for sums (in either order) and differences; for products, whose facts are few and
memorised, pairs of a phrasing and the operands.
"""

import random

from .split import Example, Split, draw

KIND = "arithmetic"

_FRAMES = (
    "What is {}?",
    "What's {}?",
    "Calculate {}.",
    "Compute {}.",
    "How much is {}?",
    "{} =",
    "{} = ?",
    "{}",
    "{}?",
    "Please calculate {}.",
    "Solve: {}",
    "Tell me what {} is.",
    "What is the result of {}?",
    "What does {} equal?",
    "Work out {}.",
    "Question: What is {}?\nAnswer:",
    "Answer with a number: {}",
    "Can you calculate {}?",
    "Evaluate {}.",
    "Quick, what is {}?",
)
_PLAIN_FRAMES = ("What is {}?", "{} =", "{} = ?", "{}")
_FORMS = {
    "+": ("{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}"),
    "-": ("{a} - {b}", "{a}-{b}", "{a} minus {b}", "the difference {a} minus {b}"),
    "*": ("{a} * {b}", "{a} x {b}", "{a} times {b}", "{a} multiplied by {b}", "the product of {a} and {b}"),
}
_STORIES = {
    "+": (
        "I have {a} {thing} and buy {b} more. How many {thing} do I have?",
        "There are {a} {thing} in one box and {b} in another. How many {thing} are there in total?",
        "Add {a} and {b}.",
        "Add {b} to {a}.",
    ),
    "-": (
        "I have {a} {thing} and give away {b}. How many {thing} are left?",
        "There were {a} {thing} in the shop and {b} were sold. How many remain?",
        "Subtract {b} from {a}.",
        "Take {b} away from {a}.",
    ),
    "*": (
        "There are {a} boxes with {b} {thing} each. How many {thing} are there?",
        "Multiply {a} by {b}.",
        "One ticket costs {b} euros. How much do {a} tickets cost?",
    ),
}
_THINGS = ("apples", "books", "coins", "cups", "pens", "stamps", "bottles", "chairs", "tickets", "eggs")


def _operands(rng: random.Random, operator: str) -> tuple[int, int]:
    if operator != "*":
        return rng.randint(0, 99), rng.randint(0, 99)
    return rng.randint(0, 9), rng.randint(0, 9)


def _phrase(rng: random.Random, operator: str) -> str:
    if rng.random() < 0.1:
        return rng.choice(_STORIES[operator])
    return rng.choice(_FRAMES if rng.random() < 0.5 else _FRAMES[:1] + _FRAMES[5:8]).format(
        rng.choice(_FORMS[operator])
    )


def _key(operator: str, phrase: str, a: int, b: int) -> str:
    if operator == "+":
        return f"+|{min(a, b)}|{max(a, b)}"
    return f"-|{a}|{b}" if operator == "-" else f"*|{phrase}|{min(a, b)}|{max(a, b)}"


def _apply(operator: str, a: int, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


def arithmetic_question(rng: random.Random, split: Split) -> Example:
    """One operation on two numbers; the answer is the number alone."""
    operator = rng.choices("+-*", (5, 5, 1))[0]
    phrase, (a, b) = draw(
        lambda: (_phrase(rng, operator), _operands(rng, operator)),
        lambda drawn: _key(operator, drawn[0], *drawn[1]),
        split,
    )
    if operator == "-" and phrase in _STORIES["-"][:2] and a < b:
        phrase = "What is {a} - {b}?"
    prompt = phrase.format(a=a, b=b, thing=rng.choice(_THINGS))
    return Example(KIND, prompt, str(_apply(operator, a, b)))

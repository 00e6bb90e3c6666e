"""A document and what it says. Knows nothing of layouts or questions."""

import random
from dataclasses import dataclass
from typing import Any, TypeVar

Facts = dict[str, Any]
"""Values by name; None for what the document does not say."""

T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    """A text and its facts."""

    text: str
    facts: Facts


def occasionally(rng: random.Random, share: float, value: T) -> T | None:
    """The value in that share of cases, else None."""
    return value if rng.random() < share else None

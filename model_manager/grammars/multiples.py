"""Least common multiples of all `multipleOf` that hold at once in a schema. Knows numbers only."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from itertools import product, starmap
from typing import Any, NamedTuple

from ..wire.errors import InvalidRequest

_MOST_UNITS = 10_000
"""States of the automaton of multiples."""
_MOST_STEPS = 10


class Step(NamedTuple):
    """A `multipleOf`."""

    size: Fraction
    last: Fraction
    """The smallest last-digit unit of the numbers that it was made from."""


Steps = frozenset[Step | None]
"""One step for each choice of alternatives; None where there is no `multipleOf`."""
NO_STEP: Steps = frozenset([None])


def step_of(value: Any) -> Steps:
    """The step of one keyword's value."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        return NO_STEP
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    last = Fraction(10) ** int(exponent)
    return frozenset([Step(int("".join(map(str, digits))) * last, last)])


def common(some: Steps, others: Steps) -> Steps:
    """The steps of two schemas that hold at once; raises InvalidRequest as check_steps does."""
    check_steps(some)
    check_steps(others)
    found = frozenset(starmap(_common, product(some, others)))
    check_steps(found)
    return found


def check_steps(steps: Steps) -> None:
    """Raises InvalidRequest if their automata would be too large, or too many."""
    units = max((int(step.size / step.last) for step in steps if step is not None), default=0)
    if units > _MOST_UNITS:
        said = f"takes up to {_MOST_UNITS} units of its last digit, with all that holds at once, got {units}"
        raise InvalidRequest(f"constraint.json_schema: `multipleOf`: {said}")
    if len(steps) > _MOST_STEPS:
        raise InvalidRequest(
            f"constraint.json_schema: `multipleOf`: takes at most {_MOST_STEPS} different alternatives"
        )


def _common(a: Step | None, b: Step | None) -> Step | None:
    if a is None or b is None:
        return a or b
    numerator = math.lcm(a.size.numerator, b.size.numerator)
    return Step(Fraction(numerator, math.gcd(a.size.denominator, b.size.denominator)), min(a.last, b.last))

"""Which processes are struck, when and how: drawn from a seed, so that a run can be repeated. Knows no process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

STOPS = 0.3
"""Share of blows that stop a process for a while, by default; the others kill it."""
_IN_A_ROW = 0.1
"""Share of blows that follow the one before at once, while the job recovers."""
_SHORTEST = 1.0
_LAST = 0.95
"""Share of the rows after which nothing is struck: a job that ends meanwhile outruns the blow."""


@dataclass(frozen=True)
class Blow:
    """One process of a role, killed with SIGKILL or stopped with SIGSTOP."""

    role: str
    after_rows: int
    """Rows that are written before."""
    pause: float
    """Seconds between SIGSTOP and SIGCONT; 0 for SIGKILL."""

    @property
    def kind(self) -> str:
        """Role and how it was struck: blows are counted by this."""
        return f"{self.role} {'stopped' if self.pause else 'killed'}"


def drawn(
    seed: int, number: int, rows: int, roles: Sequence[str], longest_pause: float, share_of_stops: float = STOPS
) -> list[Blow]:
    """So many blows over a job of so many rows, in order. Pauses are spread evenly over their logarithms."""
    rnd = random.Random(seed)
    blows: list[Blow] = []
    for index in range(number):
        stops, follows = rnd.random() < share_of_stops, rnd.random() < _IN_A_ROW
        pause = _SHORTEST * (longest_pause / _SHORTEST) ** rnd.random() if stops else 0.0
        after = int((index + rnd.random()) * _LAST * rows / number)
        if follows and blows:
            after = blows[-1].after_rows
        blows.append(Blow(rnd.choice(roles), after, round(pause, 1)))
    return blows

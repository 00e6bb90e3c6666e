"""What the latest looks at the machine had: curves, and the dead letters of jobs that have ended since."""

from __future__ import annotations

from collections import deque

import msgspec

from millrace.model_manager.wire.job_progress import FailedRow

from .figures import Figures

_MOST_POINTS = 300
_MOST_LETTERS = 50


class Point(msgspec.Struct, frozen=True):
    """What curves are made of."""

    at: float
    """Seconds by the wall clock."""
    tokens_per_s: float
    """Generated tokens a second of all models."""
    ttft: float | None
    """Median seconds to the first token; null if no row ended lately."""


class History:
    """The latest figures; whoever uses it has a thread for it."""

    def __init__(self) -> None:
        self._points = deque[Point](maxlen=_MOST_POINTS)
        self._letters: list[FailedRow] = []

    @property
    def points(self) -> list[Point]:
        """One a look, the latest last."""
        return [*self._points]

    def add(self, figures: Figures) -> Figures:
        """The same figures, with the dead letters that were seen before."""
        self._points.append(Point(figures.at, figures.tokens_per_s, figures.ttft))
        new = [letter for letter in figures.dead_letters if letter not in self._letters]
        self._letters = sorted([*self._letters, *new], key=lambda letter: letter.at)[-_MOST_LETTERS:]
        return msgspec.structs.replace(figures, dead_letters=[*self._letters])

"""How far a job has come, in requests: one is done when all its prompts are answered."""

from __future__ import annotations

from collections import Counter

from .batch_results import BatchResults, row_ids
from .batch_store import BatchFolder
from .record import Counts
from .validation import line_of


class BatchProgress:
    """Counts what a job of a batch writes. Reads files, so it belongs on another thread than the event loop's."""

    def __init__(self, folder: BatchFolder, total: int) -> None:
        """`total`: requests, those included whose body was refused and that have no row."""
        self._results = BatchResults(folder.answers)
        self._left = Counter(map(line_of, row_ids(folder.rows)))
        self._rows = self._left.total()
        self._refused = total - len(self._left)
        self._total = total
        self._completed = 0

    @property
    def answered(self) -> int:
        """Prompts that have an answer."""
        return len(self._results.answers)

    @property
    def is_done(self) -> bool:
        """Whether every prompt has an answer, or failed."""
        return self.answered + len(self._failed()) >= self._rows

    def look(self) -> Counts:
        """Read what is new."""
        for row in self._results.look():
            line = line_of(row)
            self._left[line] -= 1
            self._completed += self._left[line] == 0
        failed = {line_of(row) for row in self._failed()}
        return Counts(self._total, self._completed, self._refused + len(failed))

    def _failed(self) -> set[str]:
        """Prompts that failed, unless a later try has answered them."""
        return self._results.failures.keys() - self._results.answers.keys()

"""The rows of several files as one table, numbered from 0, and what a pass over them tells."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby

from .facts import UNREADABLE, Facts, facts_of
from .row_files import Row, RowFile, row_file
from .sketches import HistogramSketch, Lowest, Reservoir

MOST_KINDS = 100
"""Finish reasons and classes of errors that are told apart."""


class Table:
    """Files of results, one after the other."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Raises ConfigError for a file of another kind."""
        self._files: list[RowFile] = [row_file(path) for path in paths]

    @property
    def known(self) -> int | None:
        """All rows; None until files of lines are read."""
        counts = [file.known for file in self._files]
        return None if None in counts else sum(filter(None, counts))

    def count(self) -> int:
        """All rows; the first time, files of lines are read for it."""
        return sum(file.count() for file in self._files)

    def facts(self, *, spent: bool = True) -> Iterator[Facts]:
        """Facts of every row, in order. `spent`: with tokens and times."""
        for file in self._files:
            yield from map(facts_of, file.scan(spent=spent))

    def scan(self) -> Iterator[Row]:
        """Every row, with the columns of facts.py alone."""
        for file in self._files:
            yield from file.scan()

    def read(self, start: int, count: int) -> list[Row]:
        """Whole rows. A file's rows are counted only where those are not enough that it begins with."""
        found: list[Row] = []
        before = 0
        for file in self._files:
            at = start + len(found) - before
            if file.known is None or at < file.known:
                found += file.read(at, count - len(found))
            if len(found) >= count:
                break
            before += file.count()
        return found

    def at(self, numbers: Iterable[int]) -> list[Row]:
        """The whole rows of these numbers, which are in order."""
        ends = list(accumulate(file.count() for file in self._files))
        found: list[Row] = []
        for index, of_file in groupby(numbers, partial(bisect_right, ends)):
            if index < len(ends):
                before = ends[index - 1] if index else 0
                found += self._files[index].at([number - before for number in of_file])
        return found


class Digest:
    """What the rows of a table come to, in memory that does not grow with them."""

    def __init__(self, sample: int, unsure: int) -> None:
        """`sample`: rows that are chosen by chance. `unsure`: rows that are chosen for their low confidence."""
        self.rows = 0
        self.failed = 0
        self.ended = Counter[str]()
        self.prompt_tokens = HistogramSketch()
        self.generated_tokens = HistogramSketch()
        self.cached_tokens = 0
        self.latency = HistogramSketch()
        """Milliseconds."""
        self.first_token = HistogramSketch()
        """Milliseconds."""
        self._sample = Reservoir(sample)
        self._unsure = Lowest(unsure)

    def add(self, facts: Facts, number: int) -> None:
        """Count a row, by its number."""
        self.rows += 1
        self.failed += facts.failed
        self.ended[facts.ended if facts.ended in self.ended or len(self.ended) < MOST_KINDS else "others"] += 1
        self.cached_tokens += facts.cached_tokens or 0
        for counted, value in (
            (self.prompt_tokens, facts.prompt_tokens),
            (self.generated_tokens, facts.generated_tokens),
            (self.latency, None if facts.latency is None else round(facts.latency * 1000)),
            (self.first_token, None if facts.first_token is None else round(facts.first_token * 1000)),
        ):
            if value is not None:
                counted.add(value)
        self._sample.add(number)
        if facts.confidence is not None:
            self._unsure.add(facts.confidence, number)

    @property
    def unsure(self) -> list[int]:
        """The numbers of the rows of the lowest confidence."""
        return self._unsure.kept()

    def chosen(self) -> list[int]:
        """The numbers of the sample's rows."""
        return sorted({*self._sample.kept(), *self._unsure.kept()})


def digest_of(table: Table, *, sample: int, unsure: int, most_rows: int | None = None) -> Digest:
    """A pass over the table, or over its first rows; a line that is torn off counts as none."""
    found = Digest(sample, unsure)
    for number, facts in enumerate(table.facts()):
        if number == most_rows:
            break
        if facts.ended != UNREADABLE:
            found.add(facts, number)
    return found

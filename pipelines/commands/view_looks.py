"""One output to look at: its rows page by page, all or those that a filter lets through. Knows no HTTP."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from millrace.model_manager.wire.errors import ConfigError, counted
from millrace.transforms.files.object_stores import is_local

from ..pages.facts import Facts
from ..pages.found_prompts import Input, find_prompts, key_of
from ..pages.row_files import Row
from ..pages.shown_rows import ShownRow, shown_row
from ..pages.table import MOST_KINDS, Table
from ..pages.texts import harmless, number

PAGE = 50
"""Rows of a page."""
_MOST_FOUND = 2_000_000
"""Rows that a filter finds, 8 bytes each."""
_FILTERS_KEPT = 4
_LOOKED_AT = 5_000
"""Rows by which it is known at the start how rows end; an output that has no more is counted then."""


def sizes_of(paths: Sequence[str]) -> list[tuple[int, int] | None]:
    """Size and time of each file of a disk; None for one that is gone, and in object stores, which look themselves."""
    found: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            seen = Path(path).stat() if is_local(path) else None
        except OSError:
            seen = None
        found.append((seen.st_size, seen.st_mtime_ns) if seen else None)
    return found


@dataclass(frozen=True)
class Filter:
    """Which rows are shown."""

    kind: str = ""
    """The finish reason, or the class of the error."""
    failed: bool = False
    below: int | None = None
    """Per cent of confidence."""

    @classmethod
    def parse(cls, query: str) -> tuple[Filter, int]:
        """Read the filter and the page's number (from 1) from a page's query. An unknown value filters nothing."""
        given = {name: values[-1] for name, values in parse_qs(query, max_num_fields=20).items()}
        below, page = given.get("below", ""), given.get("page", "")
        return (
            cls(
                given.get("kind", ""),
                given.get("failed") == "1",
                min(int(below), 100) if below.isdecimal() and len(below) < 4 else None,
            ),
            max(int(page), 1) if page.isdecimal() and len(page) < 16 else 1,
        )

    def query(self, page: int) -> str:
        """The address of a page."""
        fields = {"kind": self.kind, "failed": "1" if self.failed else "", "below": self.below, "page": page}
        return "?" + urlencode({name: value for name, value in fields.items() if value not in ("", None)})

    @property
    def takes_all(self) -> bool:
        """Whether it filters nothing."""
        return self == Filter()

    def fits(self, facts: Facts) -> bool:
        """Whether a row is shown."""
        return (
            (not self.kind or facts.kind == self.kind)
            and (not self.failed or facts.failed)
            and (self.below is None or (facts.confidence is not None and facts.confidence * 100 < self.below))
        )


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    title: str
    said: str
    kinds: Sequence[str]
    chosen: Filter
    with_confidence: bool
    rows: Sequence[ShownRow]
    first: int = 0
    """Rows before it."""
    pages: Sequence[tuple[str, str]] = ()
    """Names of other pages and their addresses, which are empty where there is none."""
    page_said: str = ""
    place: str = "?"
    """The address that filters are sent to."""


class Look:
    """One output. Several threads may ask; each waits for its turn."""

    def __init__(self, title: str, paths: Sequence[str], source: Input | None) -> None:
        """Raises ConfigError for a file that is no output."""
        self._title = harmless(title)
        self._paths = paths
        self._table = Table(paths)
        self._as_read = sizes_of(paths)
        self._source = source
        self._found: OrderedDict[Filter, array[int]] = OrderedDict()
        self._lock = threading.Lock()
        self._kinds: dict[str, None] = {}
        self._with_confidence = False
        for facts in islice(self._table.facts(spent=False), _LOOKED_AT):
            self._notice(facts)

    @property
    def known(self) -> int | None:
        """All rows; None until they are counted."""
        return self._table.known

    def count(self) -> int:
        """All rows; reads files of lines, the first time."""
        return self._table.count()

    def page(self, query: str) -> Page:
        """The page that an address asks for; one beyond the last is the last."""
        with self._lock:
            self._check_unchanged()
            chosen, wanted = Filter.parse(query)
            if chosen.takes_all and self.known is None:
                rows = self._table.read((wanted - 1) * PAGE, PAGE)  # of the first pages, without counting
                if len(rows) == PAGE and self.known is None:
                    return self._made(chosen, wanted, rows, None)
            found = None if chosen.takes_all else self._matching(chosen)
            total = self.count() if found is None else len(found)
            page = min(wanted, max(-(-total // PAGE), 1))
            start = (page - 1) * PAGE
            rows = self._table.read(start, PAGE) if found is None else self._table.at(found[start : start + PAGE])
            return self._made(chosen, page, rows, total)

    def _made(self, chosen: Filter, page: int, rows: Sequence[Row], total: int | None) -> Page:
        """`total`: the rows that fit; None where they are not counted yet."""
        start = (page - 1) * PAGE
        return Page(
            **self._head(chosen),
            rows=self._shown(rows),
            first=start,
            pages=_pages(chosen, page, total),
            page_said=_place(start, len(rows), total, 0 if total is None else self.count()),
        )

    def _check_unchanged(self) -> None:
        """Raises ConfigError for a file that changed: its rows would stand at other places than they did."""
        for path, before, now in zip(self._paths, self._as_read, sizes_of(self._paths), strict=True):
            if before != now:
                raise ConfigError(f"{path} has changed since millrace view began: start it again")

    def first(self, rows: int) -> Page:
        """One page of the first rows."""
        found = self._table.read(0, rows)
        shown = self._shown(found)
        for row in shown:
            self._notice(row.facts)
        said = f"the first {counted(len(found), 'row')} of {number(self.count())}"
        return Page(**{**self._head(Filter()), "said": said}, rows=shown)

    def _head(self, chosen: Filter) -> dict[str, Any]:
        files = self._paths[0] if len(self._paths) == 1 else f"{counted(len(self._paths), 'file')}, {self._paths[0]} …"
        return {
            "title": self._title,
            "said": harmless(f"{'rows' if self.known is None else counted(self.known, 'row')} in {files}"),
            "kinds": sorted(self._kinds),
            "chosen": chosen,
            "with_confidence": self._with_confidence,
        }

    def _shown(self, rows: Sequence[Row]) -> list[ShownRow]:
        prompts = find_prompts(self._source, map(key_of, rows)) if self._source else {}
        return [shown_row(row, prompts.get(key_of(row))) for row in rows]

    def _matching(self, chosen: Filter) -> array[int]:
        """The numbers of the rows that fit; kept for the next pages."""
        if chosen not in self._found:
            found = array("Q")
            for place, facts in enumerate(self._table.facts(spent=False)):
                self._notice(facts)
                if chosen.fits(facts):
                    found.append(place)
                    if len(found) == _MOST_FOUND:
                        break
            self._found[chosen] = found
            if len(self._found) > _FILTERS_KEPT:
                self._found.popitem(last=False)
        self._found.move_to_end(chosen)
        return self._found[chosen]

    def _notice(self, facts: Facts) -> None:
        if len(self._kinds) < MOST_KINDS:
            self._kinds[facts.kind] = None
        self._with_confidence = self._with_confidence or facts.confidence is not None


def _pages(chosen: Filter, page: int, total: int | None) -> list[tuple[str, str]]:
    back = page > 1
    last = None if total is None else -(-total // PAGE)
    return [
        ("first", chosen.query(1) if back else ""),
        ("previous", chosen.query(page - 1) if back else ""),
        ("next", chosen.query(page + 1) if last is None or page < last else ""),
        ("last", chosen.query(last) if last and page < last else ""),
    ]


def _place(start: int, rows: int, total: int | None, everything: int) -> str:
    here = f"{number(start + 1)} to {number(start + rows)}"
    if total is None:
        return f"{here}; the rows are being counted"
    if not rows:
        return f"0 of {counted(everything, 'row')}"
    every = counted(everything, "row")
    of = every if total == everything else f"{number(total)} that fit, of {every}"
    return f"{here} of {of}"

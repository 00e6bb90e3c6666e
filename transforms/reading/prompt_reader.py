"""The common part of all readers of prompts: their settings, and what happens to a row that is no prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

import apache_beam as beam

from millrace.model_manager.wire.errors import ErrorInfo

from ..elements.beam_metrics import Count, Failures
from ..elements.completions import DEAD_LETTERS, DeadLetter, Prompt
from ..elements.near_misses import NearMisses
from ..elements.prompt_rows import RowShape
from ..elements.recent_rows import tell_failed
from ..exception_handling import HandlesExceptions
from .read_rows import MAX_ROW_BYTES


class ReaderSettings(TypedDict, total=False):
    """What every reader takes by name, and PromptReader explains."""

    input_format: str | None
    prompt_column: str | None
    id_column: str | None
    row_params: bool
    documents: bool
    template: str | None
    max_row_bytes: int
    fail_fast: bool


class PromptReader(HandlesExceptions):
    """Prompts. A row that is none fails the job with its place and reason; see `with_exception_handling`."""

    def __init__(
        self,
        *,
        input_format: str | None = None,
        prompt_column: str | None = None,
        id_column: str | None = None,
        row_params: bool = True,
        documents: bool = False,
        template: str | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
        fail_fast: bool = False,
    ) -> None:
        """`input_format`: by default the file says. `prompt_column`, `id_column`: by default as in prompt_rows.

        `documents`: the prompt column is by default `text`, `document` or `prompt`. `template` makes the prompt of the
        row's columns (prompt_template.py), or of a text, which is its column `text`.
        `row_params=False` reads no sampling parameters from rows. A row longer than `max_row_bytes` is no prompt.
        """
        super().__init__()
        self._format = input_format
        self._shape = RowShape(
            prompt_column=prompt_column,
            id_column=id_column,
            row_params=row_params,
            documents=documents,
            template=template,
        )
        self._max_row_bytes = max_row_bytes
        self._fail_fast = fail_fast

    @property
    def _strict(self) -> bool:
        """Whether a row that is no prompt fails the job."""
        return self._fail_fast or self._handling is None

    def _rows(self, label: str, of: Any, reader: RowsDoFn) -> tuple[Any, Any]:
        """The prompts and the dead letters of what a DoFn reads."""
        rows = of | label >> beam.ParDo(reader).with_outputs(DEAD_LETTERS, main="prompts")
        rows.prompts.element_type, rows[DEAD_LETTERS].element_type = Prompt, DeadLetter
        return rows.prompts, rows[DEAD_LETTERS]


class RowsDoFn(beam.DoFn):
    """Whatever has rows → its prompts; rows that are none leave by the output of dead letters."""

    def __init__(self, shape: RowShape, max_row_bytes: int, *, strict: bool) -> None:
        """`strict`: a row that is no prompt fails the job."""
        self._shape = shape
        self._max_row_bytes = max_row_bytes
        self._strict = strict
        self._near_misses = NearMisses()
        self._prompts = Count("prompts")
        self._unreadable = Count("unreadable_rows")
        self._failures = Failures()

    def _sorted(self, rows: Iterable[Prompt | DeadLetter]) -> Iterator[Any]:
        """The prompts as they are, the letters to their output. Raises what a letter says, if `strict`."""
        for row in rows:
            if isinstance(row, Prompt):
                if self._shape.row_params:
                    self._near_misses.look(row.columns)
                self._prompts.inc()
                yield row
                continue
            self._unreadable.inc()
            self._failures.count(row.error)
            if self._strict:
                raise ErrorInfo(kind=row.error, message=f"{row.source}: {row.reason}").exception()
            tell_failed(row)
            yield beam.pvalue.TaggedOutput(DEAD_LETTERS, row)

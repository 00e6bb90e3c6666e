"""What Extract and Classify have in common: their output elements are rows, unless `as_results()` is called."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import apache_beam as beam

from ..typed.beam_schemas import known_to_workers
from .model_transform import ModelTransform, keyed_as


class RowOutputTransform(ModelTransform):
    """A row for each prompt, keyed as it came."""

    _gives_results = False

    def as_results(self) -> Self:
        """Give the task's results, Extracted or Classified, instead of rows: what WriteCompletions takes."""
        self._gives_results = True
        return self

    @property
    @abstractmethod
    def row_type(self) -> Any:
        """The type of the rows."""

    @property
    @abstractmethod
    def make_row(self) -> Callable[[Any], Any]:
        """A result of the task → a row."""

    def _emitted(self, results: Any, prompts: Any) -> Any:
        if self._gives_results:
            return results
        known_to_workers(prompts.pipeline.options)
        rows = results | "Rows" >> beam.Map(_with_row, self.make_row)
        rows.element_type = keyed_as(prompts.element_type, self.row_type)
        return rows


def _with_row(element: Any, make_row: Callable[[Any], Any]) -> Any:
    return (element[0], make_row(element[1])) if isinstance(element, tuple) else make_row(element)

"""The DoFn behind Generate, Score and Embed where a side input names the model while the job runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSideInput, AsSingleton, PCollection

from millrace.model_manager.wire.errors import ConfigError

from ..models.updates import WatchedFile
from .asynchronous import AsyncRequestDoFn

Updates: TypeAlias = "WatchedFile | PCollection[Any] | AsSingleton | None"
"""Where updates come from: see Generate."""


class Dated(NamedTuple):
    """An update and its timestamp."""

    seconds: float
    update: Any


def checked_updates(updates: Any) -> Any:
    """Raises ConfigError for what names no model."""
    if updates is None or isinstance(updates, WatchedFile | PCollection | AsSingleton):
        return updates
    raise ConfigError(f"updates={updates!r}: takes a WatchedFile, a PCollection, or AsSingleton of one")


def latest_update(updates: Any) -> AsSideInput:
    """The side input of the DoFn below."""
    if isinstance(updates, AsSideInput):
        return updates
    return AsList(updates | "Date updates" >> beam.Map(_dated))


def _dated(update: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Dated:
    return Dated(timestamp.micros / 1e6, update)


class UpdatedRequestDoFn(AsyncRequestDoFn):
    """An AsyncRequestDoFn that first looks at the side input in the window of each element, for a new model.

    Late elements of an earlier window do not turn the model back. Where the side input has other windows than the
    global one, Beam calls `process` for each window of an element, so each window makes a request.
    """

    def process(  # type: ignore[override]
        self, element: Any, updates: Any = None, windowed: Any = beam.DoFn.WindowedValueParam
    ) -> Iterator[Any]:
        as_of = max(window.max_timestamp() for window in windowed.windows)
        self._leased().switch.see(_latest(updates), as_of)
        yield from super().process(element, windowed)


def _latest(updates: Any) -> Any:
    """The latest update in the window. Among equal timestamps, all workers choose the same one."""
    if not isinstance(updates, list):
        return updates
    latest = max(updates, key=lambda dated: (dated.seconds, repr(dated.update)), default=None)
    return None if latest is None else latest.update

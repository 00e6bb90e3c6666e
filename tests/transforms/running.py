"""Running small pipelines on Beam's local runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that


@contextmanager
def pipeline(*flags: str) -> Iterator[beam.Pipeline]:
    """Runs at the end of the block."""
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(list(flags))) as running:
        yield running


def check(collection: Any, holds: Callable[[list[Any]], bool], label: str = "check") -> None:
    """The pipeline fails unless `holds(all elements)`."""

    def matcher(elements: list[Any]) -> None:
        assert holds(elements), elements

    assert_that(collection, matcher, label=label)


def counters(result: Any) -> dict[str, int]:
    """Our counters after a run."""
    found = result.metrics().query()["counters"]
    return {each.key.metric.name: each.committed for each in found if each.key.metric.namespace == "millrace"}

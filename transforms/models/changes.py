"""Changes of the model while a job runs, counted for its summary; the switch logs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from apache_beam.metrics import Metrics

from ..elements.metrics import NAMESPACE
from .switch import ModelChange

MADE = "model_changes"
_FAILED = "failed_model_change:"
"""And the class of the error: a stream that runs for months has no more counters than there are of those."""


def count_changes(changes: Iterable[ModelChange]) -> None:
    """On the bundle's own thread, where Beam takes metrics; counted by worker process."""
    for change in changes:
        if change.error:
            Metrics.counter(NAMESPACE, _FAILED + change.error).inc()
        else:
            Metrics.counter(NAMESPACE, MADE).inc()


def failed_changes(counts: Mapping[str, int]) -> list[str]:
    """From the counters of a finished job, a sentence each."""
    failed = sorted(name.removeprefix(_FAILED) for name in counts if name.startswith(_FAILED))
    return [f"the model was not changed ({error}): the log says to which, and why" for error in failed]

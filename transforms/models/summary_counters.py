"""Beam counters for the job's summary: changes of the model, and settings that are not in force.

Each worker process counts its own. The events themselves are logged where they happen.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from apache_beam.metrics import Metrics

from millrace.model_manager.wire.decoding import json_decoder
from millrace.model_manager.wire.shared_settings import UnmetSetting

from ..elements.beam_metrics import NAMESPACE
from .shared_model import Lease

MADE = "model_changes"
_FAILED = "failed_model_change:"
"""Followed by the class of the error: a stream that runs for months has no more counters than there are classes."""
_UNMET = "unmet_setting:"


def count(lease: Lease) -> None:
    """Called on the bundle's own thread, where Beam takes metrics."""
    for setting in lease.unmet:
        Metrics.counter(NAMESPACE, _UNMET + msgspec.json.encode(setting).decode()).inc()
    for change in lease.switch.take_changes():
        Metrics.counter(NAMESPACE, _FAILED + change.error if change.error else MADE).inc()


def counted_unmet(counts: Mapping[str, int]) -> list[UnmetSetting]:
    """The settings that do not hold, from the counters of a finished job."""
    found = [name.removeprefix(_UNMET) for name in counts if name.startswith(_UNMET)]
    return sorted((json_decoder(UnmetSetting).decode(each) for each in found), key=str)


def failed_changes(counts: Mapping[str, int]) -> list[str]:
    """A sentence for each class of failed change, from the counters of a finished job."""
    failed = sorted(name.removeprefix(_FAILED) for name in counts if name.startswith(_FAILED))
    return [f"the model was not changed ({error}): the log says to which, and why" for error in failed]

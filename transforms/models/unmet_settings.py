"""Settings that a job asked for and does not get, counted for its summary; the client logs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from apache_beam.metrics import Metrics

from millrace.model_manager.wire.shared_settings import UnmetSetting

from ..elements.metrics import NAMESPACE

_COUNTER = "unmet_setting:"


def count_unmet(unmet: Iterable[UnmetSetting]) -> None:
    """On the bundle's own thread, where Beam takes metrics."""
    for setting in unmet:
        Metrics.counter(NAMESPACE, _COUNTER + msgspec.json.encode(setting).decode()).inc()


def counted_unmet(counts: Mapping[str, int]) -> list[UnmetSetting]:
    """From the counters of a finished job."""
    found = [name.removeprefix(_COUNTER) for name in counts if name.startswith(_COUNTER)]
    return sorted((msgspec.json.decode(each, type=UnmetSetting) for each in found), key=str)

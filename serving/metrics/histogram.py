"""A histogram that takes many observations of one value at once, which the library's own does not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


@dataclass
class _Series:
    """Counts of one set of labels."""

    counts: list[int]
    """Observations in each bucket, those in smaller buckets not included."""
    total: float = 0.0


@dataclass
class LabelledHistogram:
    """Observations by labels; whoever uses it has a lock."""

    name: str
    meaning: str
    labels: Sequence[str]
    bounds: Sequence[float]
    """Largest value of each bucket, ascending; a last one for all larger values is added."""
    _series: dict[tuple[str, ...], _Series] = field(default_factory=dict)

    def observe(self, labels: tuple[str, ...], value: float, count: int = 1) -> None:
        """Count a value, so many times."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series([0] * (len(self.bounds) + 1))
        series.counts[bisect_left(self.bounds, value)] += count
        series.total += value * count

    def family(self) -> HistogramMetricFamily:
        """As the library writes it: each bucket counts the smaller ones too."""
        family = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
        names = [*map(str, self.bounds), "+Inf"]
        for labels, series in self._series.items():
            family.add_metric(labels, [*zip(names, accumulate(series.counts), strict=True)], series.total)
        return family

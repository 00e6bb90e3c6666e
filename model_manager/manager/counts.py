"""What a model has counted: it outlives the model's engines, and the model, so that no counter falls.

A counter vanishes only if _MOST_ENDED other models have ended since its own did. Knows no engine and no request.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from ..wire.request_counts import RequestCounter, RequestCounts
from ..wire.status import EndedModel, EngineStats, EngineTotals, Source

_MOST_ENDED = 16
"""Each adds about 2 kB to a status, and 84 kB to a scrape of /metrics."""


class ModelCounts:
    """The counters of one model."""

    def __init__(self, model: str) -> None:
        """`model`: its name."""
        self.model = model
        self.restarts = 0
        self.answered = defaultdict[Source, RequestCounter](RequestCounter)
        """Counts of the answered requests, by who sent them."""
        self.of_ended_engines = EngineTotals()
        """What engines that have ended had counted, summed."""

    def engine_ended(self, stats: EngineStats) -> None:
        """An engine has ended, which had counted this."""
        names = EngineTotals.__struct_fields__
        self.of_ended_engines = EngineTotals(
            *(getattr(self.of_ended_engines, name) + getattr(stats, name) for name in names)
        )

    def requests(self) -> dict[str, RequestCounts]:
        """The answered requests as the status has them."""
        return {source: counter.counts() for source, counter in self.answered.items()}


class EndedModels:
    """The counters of models that nobody uses any more, by key. Beyond _MOST_ENDED, the one that ended the longest ago
    is forgotten.
    """

    def __init__(self) -> None:
        self._counts = OrderedDict[str, ModelCounts]()

    def keep(self, key: str, counts: ModelCounts) -> None:
        """Keep a model's counters as it ends."""
        self._counts[key] = counts
        if len(self._counts) > _MOST_ENDED:
            self._counts.popitem(last=False)

    def take(self, key: str) -> ModelCounts | None:
        """The counters of a model that is opened again."""
        return self._counts.pop(key, None)

    def status(self) -> list[EndedModel]:
        """All counters."""
        return [
            EndedModel(key, counts.model, counts.restarts, counts.of_ended_engines, counts.requests())
            for key, counts in self._counts.items()
        ]

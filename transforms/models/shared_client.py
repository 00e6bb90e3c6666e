"""One client a worker process for all the DoFns of a transform, whichever model it is of by then."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence

from apache_beam.utils.shared import Shared

from millrace.model_manager.wire.shared_settings import UnmetSetting

from .client import ClientOptions, Opener
from .switch import ModelSwitch, ServedModel
from .updates import WatchedFile


class SharedClient:
    """Opened by the first DoFn that has an element, closed by the last; pickled into the pipeline.

    Not opened before an element comes: a worker, or a bundle, without any starts nothing.
    """

    def __init__(self, options: ClientOptions, opener: Opener, watched: WatchedFile | None = None) -> None:
        """`watched` names the model while the job runs."""
        self._options = options
        self._opener = opener
        self._watched = watched
        self._shared = Shared()

    @property
    def retry_within(self) -> float:
        """Seconds that what a failed bundle has asked for goes on."""
        return self._options.retry_within

    def lease(self, holder: object) -> Lease:
        """Have models from here for as long as `holder` lives, or until the lease is ended."""
        switch = self._shared.acquire(
            lambda: ModelSwitch(self._options, self._opener, self._watched), tag=self._options.model.key
        )
        return Lease(switch, holder)


class Lease:
    """The use of the switch, and of the models that elements are with, by one DoFn or by those of a process."""

    def __init__(self, switch: ModelSwitch, holder: object) -> None:
        switch.enter()
        self.switch = switch
        self._lock = threading.Lock()
        self._begun: Counter[ServedModel] = Counter()
        self._end = weakref.finalize(holder, _leave, switch, self._begun)

    def begin(self) -> ServedModel:
        """The model for one more element; the first call waits until it is loaded."""
        served = self.switch.begin()
        with self._lock:
            self._begun[served] += 1
        return served

    def finish(self, served: ServedModel) -> None:
        """An element that was with that model is done."""
        with self._lock:
            self._begun[served] -= 1
            if not self._begun[served]:
                del self._begun[served]
        served.leave()

    @property
    def unmet(self) -> Sequence[UnmetSetting]:
        """Settings that were asked for and do not hold."""
        current = self.switch.current
        return current.client.unmet if current is not None else ()

    def end(self) -> None:
        """Let go of everything; once is enough, more does no harm."""
        self._end()


def _leave(switch: ModelSwitch, begun: Counter[ServedModel]) -> None:
    for served, times in begun.items():
        served.leave(times)
    begun.clear()
    switch.leave()

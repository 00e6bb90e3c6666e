"""The model that all DoFns of a transform share in a worker process; it may change while the job runs."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence

from apache_beam.utils.shared import Shared

from millrace.model_manager.wire.shared_settings import UnmetSetting
from millrace.model_manager.wire.traces import Traces

from .client import Client, ClientOptions, Opener, takes_seeds
from .switch import ModelSwitch
from .updates import WatchedFile


class SharedModel:
    """Opens the model for the first element, and closes it with the last lease. Pickled into the pipeline.

    A worker or bundle without elements starts nothing. Beam's Shared finds the process's one switch for all unpickled
    copies, by a key made before pickling. It never says when the last user is gone: leases count users for that.
    """

    def __init__(self, options: ClientOptions, opener: Opener, watched: WatchedFile | None = None) -> None:
        """`watched` names the model while the job runs."""
        self._options = options
        self._opener = opener
        self._watched = watched
        self._shared = Shared()

    @property
    def name(self) -> str:
        """The name of the model, as it was given."""
        return self._options.model.model

    @property
    def seeds(self) -> bool:
        """Whether the engine takes seeds."""
        return takes_seeds(self._options.model)

    @property
    def traces(self) -> Traces | None:
        """Where spans of rows and requests go."""
        return self._options.traces

    @property
    def retry_within(self) -> float:
        """Seconds for which the requests of a failed bundle go on."""
        return self._options.retry_within

    def lease(self, holder: object) -> Lease:
        """The use of the model for as long as `holder` lives, or until the lease is ended."""
        switch = self._shared.acquire(
            lambda: ModelSwitch(self._options, self._opener, self._watched), tag=self._options.model.key
        )
        return Lease(switch, holder)


class Lease:
    """One holder's use of the model. The holder is a DoFn, or stands for all stateful DoFns of a process."""

    def __init__(self, switch: ModelSwitch, holder: object) -> None:
        switch.enter()
        self.switch = switch
        self._lock = threading.Lock()
        self._begun: Counter[Client] = Counter()
        self._end = weakref.finalize(holder, _leave, switch, self._begun)

    def begin(self) -> Client:
        """The client for one more element; the first call waits until the model is loaded."""
        client = self.switch.begin()
        with self._lock:
            self._begun[client] += 1
        return client

    def finish(self, client: Client) -> None:
        """An element that went to this client is done."""
        with self._lock:
            self._begun[client] -= 1
            if not self._begun[client]:
                del self._begun[client]
        self.switch.finish(client)

    @property
    def unmet(self) -> Sequence[UnmetSetting]:
        """Settings that were asked for and do not hold."""
        current = self.switch.current
        return current.unmet if current is not None else ()

    def end(self) -> None:
        """Let go of everything; once is enough, more does no harm."""
        self._end()


def _leave(switch: ModelSwitch, begun: Counter[Client]) -> None:
    for client, times in begun.items():
        switch.finish(client, times)
    begun.clear()
    switch.leave()

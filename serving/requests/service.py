"""The service that all routes share: the model, the way to it and back, and the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry
from starlette.types import Scope

from millrace.model_manager.client.status import ReadStatus, read_status
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import model_name
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.conversion import shown

from ..http.http_errors import HttpError, too_busy
from ..http.keys import client_of
from ..http.observers import Observer, Observers
from ..http.reading import BodyMemory
from ..http.slots import ClientSlots
from ..metrics.machine_metrics import MachineMetrics
from ..metrics.request_metrics import RequestCollector
from ..metrics.snapshot import snapshot
from ..settings import ServeConfig
from ..window.figures import Figures, ServerFigures, figures
from ..window.latest_requests import RecentRequests
from ..window.shared_frames import Watching
from .adapter_lookups import AdapterLookups
from .constraint_checks import ConstraintChecks
from .opening_client import OpeningClient
from .submitting import Crossing, Submitter
from .turns import FairSemaphore

_THREADS = 5
"""Threads that read bodies, apply chat templates and tokenize. The last one that is free is for a client that has none.
"""
MOST_NAMED = 8
"""Most models that an error names."""
_Made = TypeVar("_Made")
JobCommand = Callable[[str, Sequence[str]], list[str]]
"""A command of millrace's, such as `run`, and its further flags → the whole command line, which answers with this
server's model. Its process leads a group, and ends with the server's even where that is killed.
"""


class Abortable(Protocol):
    """What runs for a client."""

    def abort(self) -> None:
        """End it; its client is told."""


@dataclass(frozen=True)
class Served:
    """What is served, as answers name it."""

    model: str
    """Name of the model in requests and answers."""
    backend: str
    """The engine's name."""
    version: str
    """The server's."""
    job: JobCommand
    """What starts the jobs of batches."""
    read_status: ReadStatus = read_status
    """What the manager does, for the page and for metrics."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Paths of LoRA adapters, by the names that requests have for them. A request never names a path."""

    @property
    def names(self) -> list[str]:
        """All that a request may name as its model."""
        return [self.model, *self.adapters]


class Service:
    """Made in the event loop that it serves; `close` ends its threads."""

    def __init__(
        self, settings: ServeConfig, served: Served, engine: OpeningClient, observers: Sequence[Observer]
    ) -> None:
        self.settings = settings
        self.served = served
        self.engine = engine
        requests = RequestCollector(lambda: (model_name(engine.client.info.name), engine.client.key))
        self._recent = RecentRequests()
        self.observers = Observers([*observers, requests, self._recent])
        self.watching = Watching(self._figures)
        """What viewers of the page are sent."""
        self.metrics = CollectorRegistry()
        """Metrics of this server's requests and of the machine. Another thread collects them: a manager may be slow."""
        for collector in (requests, MachineMetrics(served.read_status, self._queued, requests.answered)):
            self.metrics.register(collector)
        self._loop = asyncio.get_running_loop()
        self._flushes = False
        self.crossing = Crossing(self._loop)
        self.submitter = Submitter(engine.cancel)
        self.body_memory = BodyMemory(settings.most_bytes_of_all)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="millrace-prepare")
        self._threads = FairSemaphore(_THREADS)
        self.constraints = ConstraintChecks()
        self.adapters = AdapterLookups(engine.find_adapter, self.crossing)
        self._slots = ClientSlots(settings.max_inflight)
        self.running: set[Abortable] = set()
        """What `abort` ends."""

    def _figures(self) -> Figures:
        """Figures of this machine and this server. Runs on another thread than the event loop."""
        ready = self.engine.is_ready
        server = ServerFigures(model=self.served.model, version=self.served.version, is_ready=ready)
        return figures(snapshot(self.served.read_status), self._recent.lives(), server)

    def _queued(self) -> dict[str, int]:
        """Requests that wait here for a credit, by the model's key. Runs on another thread than the event loop."""
        return {self.engine.client.key: self.submitter.num_waiting} if self.engine.is_ready else {}

    def client_of(self, scope: Scope) -> Hashable:
        """Equal for requests that share their turns: who has sent one, by key where there are keys, else by address."""
        return client_of(scope, has_keys=self.settings.api_key_file is not None)

    def take_slot(self, client: Hashable) -> None:
        """Count a request of the client; raises HttpError (429) where `max_inflight` run. A client that has none
        gets a slot while there are less than twice as many.
        """
        if not self._slots.take(client):
            raise too_busy(self.settings.max_inflight)

    def give_slot(self, client: Hashable) -> None:
        """Give back a client's slot."""
        self._slots.give(client)

    async def beside(self, make: Callable[[], _Made], client: Hashable = None) -> _Made:
        """What a function gives that computes for long, on another thread; clients take turns."""
        async with self._threads.of(client):
            return await asyncio.get_running_loop().run_in_executor(self._pool, make)

    async def check_constraint(self, constraint: Constraint | None, client: Hashable) -> None:
        """Raises InvalidRequest for one that the engine would refuse, or take too long for. Servers elsewhere have
        rules of their own.
        """
        if constraint is not None and BACKENDS[self.served.backend].fetches_files:
            await self.constraints.check(constraint, client)

    def adapter_of(self, name: str | None) -> str:
        """The path of the adapter that a request names as its model; empty for the model itself, or without a name.
        Raises HttpError (404) for another name.
        """
        if name is None or name == self.served.model:
            return ""
        if (path := self.served.adapters.get(name)) is not None:
            return path
        known = self.served.names
        more = " …; /v1/models lists all" if len(known) > MOST_NAMED else ""
        raise HttpError(
            404,
            f"model={shown(name)}: is not served here; takes {', '.join(known[:MOST_NAMED])}{more}",
            param="model",
            code="model_not_found",
        )

    def flush_soon(self) -> None:
        """Have the requests that were submitted at once leave, all of one turn of the event loop together."""
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        self.engine.client.flush_at_once()

    def abort(self) -> None:
        """End all that runs; the clients are told."""
        self.adapters.abort()
        for exchange in self.running:
            exchange.abort()

    def close(self) -> None:
        """Cancel what runs and let go of the model."""
        self.adapters.close()
        self.engine.close()
        self.submitter.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

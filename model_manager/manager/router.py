"""Keeps the connected clients and the models, and gives each message to the model that it concerns.

A state machine without IO and without a clock: events in, effects out. The server calls one method for each event, the
router's or a model's, with the time that it happened, and carries out what `effects` returns.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..store.memory import MemoryNeed
from ..wire.config import ManagerConfig, ModelConfig
from ..wire.errors import ConfigError, ModelDoesNotFit, ModelLost
from ..wire.messages import Cancel, CloseModel, ModelFailed, OpenModel, Submit
from ..wire.server_keys import check_same_key
from ..wire.status import EndedModel, JobStatus, ModelInfo, ModelStatus
from ..wire.tally import Tally
from ..wire.transport import ProtocolError
from .counts import EndedModels, ModelCounts
from .engine_pool import RUNNING, State
from .gpus import engine_setups
from .jobs import JobCounts
from .memory_scheduler import Admit, Decision, Drain, EndDrain, Evict, MemoryScheduler, ModelUse, Refuse, ResizeCache
from .model import Model
from .outbox import Effect, Outbox
from .results import KeptResults

MOST_OUTSTANDING = 65536
"""Requests a client may have outstanding whatever its credit is: credits shrink, and a new manager may grant fewer."""

FIRST_CLIENT_WITHIN = 10.0
"""Seconds, on top of `linger`, that a new manager waits for whoever started it."""

EstimateMemory = Callable[[ModelConfig, str], MemoryNeed]
"""Estimates the memory that one engine takes, from a model's settings and folder."""
FindKnown = Callable[[ModelConfig, str], ModelInfo | None]
"""What an earlier load of a model found, from its settings and folder; None if there was none."""
_log = logging.getLogger(__name__)


@dataclass
class _Client:
    observer: bool
    models: set[str] = field(default_factory=set)


class Router:
    """All models of a machine."""

    def __init__(
        self,
        settings: ManagerConfig,
        now: float,
        gpus: Sequence[str] = (),
        cores: int = 1,
        memory: MemoryScheduler | None = None,
        estimate: EstimateMemory = lambda _config, _folder: MemoryNeed(),
        find_known: FindKnown = lambda _config, _folder: None,
    ) -> None:
        """`gpus`, `cores`: what the machine has for engines; `memory`: shares its memory out, by default unbounded."""
        self._settings = settings
        self._gpus = gpus
        self._cores = cores
        self._outbox = Outbox()
        self._kept = KeptResults(settings.results_kept_mib * 2**20, settings.results_kept)
        self._jobs = JobCounts()
        self._clients: dict[int, _Client] = {}
        self._models: dict[str, Model] = {}
        self._ended = EndedModels()
        self._memory = memory or MemoryScheduler()
        self._estimate = estimate
        self._find_known = find_known
        self._alone_since = now + FIRST_CLIENT_WITHIN
        self.was_needed = False
        """Whether a client that is no observer has ever connected."""

    def effects(self, now: float) -> list[Effect]:
        """The effects of all events since the last call."""
        self._share_memory(now)
        for model in self._models.values():
            model.pump(now)
        return self._outbox.drain()

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, client: int, *, observer: bool) -> None:
        """A client said Hello."""
        assert client not in self._clients, "a client connects once"
        self._clients[client] = _Client(observer)
        self.was_needed |= not observer

    def disconnect(self, client: int, now: float) -> None:
        """A client's connection ended. Requests that only it waits for go on for a while, so a retry can attach."""
        gone = self._clients.pop(client, None)
        for key in gone.models if gone else ():
            if (model := self._models.get(key)) is not None:
                model.leave(client, died=True, now=now)
        if gone and not gone.observer:
            self._alone_since = now

    def open_model(self, client: int, message: OpenModel, now: float) -> None:
        """A client wants a model. It gets ModelFailed if the machine lacks what the settings ask for, such as GPUs."""
        key = message.config.key
        self._clients[client].models.add(key)
        model = self._models.get(key)
        try:
            check_same_key(message.config, message.key_digest)
            if model is None or not model.is_needed:  # no client uses the model with its earlier settings
                model = self._new_model(message)
        except ConfigError as error:
            self._outbox.to_client(client, ModelFailed(key, error.info()))
            return
        self._models[key] = model
        model.open(client, message, now)
        self._compare()

    def _new_model(self, message: OpenModel) -> Model:
        setups = engine_setups(message.config, self._gpus, self._cores)
        return Model(
            message.config,
            message.folder,
            setups,
            settings=self._settings,
            outbox=self._outbox,
            kept=self._kept,
            jobs=self._jobs,
            need=self._estimate(message.config, message.folder),
            counts=self._counts_of(message.config),
            known=self._find_known(message.config, message.folder),
        )

    def _counts_of(self, config: ModelConfig) -> ModelCounts:
        """The counters of a model that was open before go on."""
        before = self._models.get(config.key)
        return (before.counts if before else self._ended.take(config.key)) or ModelCounts(config.name)

    def close_model(self, client: int, message: CloseModel, now: float) -> None:
        """A client closes a model: requests that only it waits for are cancelled."""
        self._clients[client].models.discard(message.key)
        if (model := self._models.get(message.key)) is not None:
            model.leave(client, died=False, now=now, lingers=not message.replaced)

    def submit(self, client: int, message: Submit, now: float) -> None:
        """Requests of a client; raises ProtocolError if it has not opened the model, or sends far more than it may."""
        model = self._opened(client, message.key)
        if model is None:
            return
        for request in message.requests:
            if model.outstanding(client) >= MOST_OUTSTANDING:
                raise ProtocolError(f"more than {MOST_OUTSTANDING} requests outstanding")
            model.submit(client, request, now)

    def cancel(self, client: int, message: Cancel, now: float) -> None:
        """A client wants requests no more; raises ProtocolError if it has not opened the model."""
        model = self._opened(client, message.key)
        for request_id in message.request_ids if model is not None else ():
            assert model is not None
            model.cancel(client, request_id, now)

    def computed_for(self, client: int) -> dict[str, int]:
        """Tokens that engines have computed for a client's running requests."""
        return {name: count for model in self._used_by(client) for name, count in model.computed_for(client).items()}

    def send_to_keep(self, client: int) -> None:
        """Send a client what it keeps in case this manager dies."""
        for model in self._used_by(client):
            model.send_to_keep(client)

    def _used_by(self, client: int) -> list[Model]:
        return [self._models[key] for key in self._clients[client].models if key in self._models]

    def _opened(self, client: int, key: str) -> Model | None:
        """The client's model. None if the model has failed and the client had not heard of it when it sent its message:
        ModelFailed is the answer.
        """
        model = self._models.get(key)
        if model is not None and client in model.users:
            return model
        if key in self._clients[client].models:
            return None
        raise ProtocolError(f"{key} was not opened")

    def stop_model(self, key: str | None) -> None:
        """End a model's engine, or all; their clients are told."""
        for model in [model for model in self._models.values() if key in (None, model.key)]:
            stopped = ModelLost(f"{model.config.model} was stopped by `millrace stop`")
            model.fail(stopped.info())

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _share_memory(self, now: float) -> None:
        """Load the models that have room, unload those that make room for others, and change the sizes of caches."""
        is_wanted = self._memory.is_waited_for or any(each.state is State.WAITING for each in self._models.values())
        if is_wanted:
            self._refuse_own_pins(now)
        shares = self._shares() if is_wanted else {}
        for model in self._models.values():
            if model.state is State.WAITING:
                self._memory.release(model.key)
                self._memory.ask(model.load_request, now, is_opening=model.is_opening, share=shares[model.key])
            elif model.state not in RUNNING:
                self._memory.withdraw(model.key)
                self._memory.release(model.key)
            elif size := model.cache_bytes:
                self._memory.resized(model.key, size)
        if self._memory.is_waited_for or self._memory.has_shrunk:
            for decision in self._memory.decide(self._loaded(shares), now):
                self._carry_out(decision, now)

    def _refuse_own_pins(self, now: float) -> None:
        """Refuse the jobs that have a pinned model beside which another model of theirs can never be loaded: that would
        wait until the job ends.
        """
        pins: dict[str, set[str]] = {}
        for model in self._models.values():
            for job in model.clients_of_jobs if model.config.pinned else ():
                pins.setdefault(job, set()).add(model.key)
        for model in self._models.values() if pins else ():
            for job, clients in model.clients_of_jobs.items() if model.state is State.WAITING else ():
                own = pins.get(job, set())
                if own and (why := self._memory.why_never(model.load_request, self._loaded({}), own)):
                    model.refuse(clients, ModelDoesNotFit(why).info(), now)

    def _loaded(self, shares: Mapping[str, float]) -> dict[str, ModelUse]:
        running = (model for model in self._models.values() if model.state in RUNNING)
        return {model.key: model.use(shares.get(model.key, 1.0)) for model in running}

    def _shares(self) -> dict[str, float]:
        """The share of each model: the weights of the jobs that have requests for it, where a job's weight is divided
        among its models. It is no less than what a client weighs that opens it, and can send no request yet.
        """
        models = Tally(job for model in self._models.values() for job in model.jobs)
        return {
            key: max(sum(weight / models[job] for job, weight in model.jobs.items()), model.opening_weight) or 1.0
            for key, model in self._models.items()
        }

    def _carry_out(self, decision: Decision, now: float) -> None:
        model = self._models[decision.key]
        match decision:
            case Admit(_, cache):
                model.load(cache)
            case Evict():
                _log.info("%s is unloaded: another model needs its memory", model.key)
                model.unload()
            case ResizeCache(_, cache):
                _log.info("%s gets a KV cache of %.2f GiB", model.key, cache / 2**30)
                model.resize_cache(cache)
            case Drain():
                _log.info("%s finishes the requests that it has: another model needs its memory", model.key)
                model.drain(now)
            case EndDrain():
                model.end_drain()
            case Refuse(_, why):
                model.fail(ModelDoesNotFit(why).info())

    def _compare(self) -> None:
        """Tell the models whether all that are in use fit at once. If not, known ones are loaded on demand."""
        used = [model for model in self._models.values() if model.users]
        self._memory.expect(model.load_request for model in used)
        is_crowded = self._memory.is_crowded
        for model in used:
            model.crowd(is_crowded)
            is_due = is_crowded and model.can_load_on_demand
            if is_due and not self._memory.why_never(model.load_request, self._loaded({})):
                model.open_on_demand()

    # ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def model(self, key: str) -> Model:
        """The model that an event of its engine concerns."""
        return self._models[key]

    # ── time and views ───────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """Time has passed: orphans, idle models and old results go."""
        self._kept.expire(now)
        for model in list(self._models.values()):
            model.tick(now)
            if not model.is_needed and not any(model.key in client.models for client in self._clients.values()):
                self._memory.withdraw(model.key)
                self._memory.release(model.key)
                del self._models[model.key]
                self._ended.keep(model.key, model.counts)
        self._compare()
        for key in self._memory.take_long_waits(now):
            _log.info("%s waits for %s", key, self._memory.waits_for(key))
            self._models[key].warn(["it waits for room in memory: millrace ps says for what"])

    def is_done(self, now: float) -> bool:
        """Whether the manager may end: no client for a while, no request, no engine."""
        if any(not client.observer for client in self._clients.values()) or self._models:
            return False
        return now - self._alone_since >= self._settings.linger

    def jobs(self) -> list[JobStatus]:
        """Counts by job."""
        return self._jobs.status()

    def models(self, pids: Mapping[tuple[str, int], int]) -> list[ModelStatus]:
        """Snapshots, with the pids of their engines, which are known by key and number."""
        return [
            model.status(
                [pid for (key, _), pid in sorted(pids.items()) if key == model.key], self._memory.waits_for(model.key)
            )
            for model in self._models.values()
        ]

    def ended(self) -> list[EndedModel]:
        """Counters of the models that nobody uses any more."""
        return self._ended.status()

    def models_of(self, client: int) -> str:
        """Names of the models that a client uses, for lists of processes."""
        keys = self._clients[client].models if client in self._clients else ()
        return ", ".join(sorted(self._models[key].config.model for key in keys if key in self._models))

    def check_integrity(self) -> None:
        """Raise AssertionError if the parts contradict each other (tests)."""
        self._memory.check_integrity()
        for model in self._models.values():
            model.check_integrity()
            for client in model.users:
                assert model.key in self._clients[client].models, "a user does not know its model"
        assert math.isfinite(self._kept.size)
        assert self._kept.size <= self._settings.results_kept_mib * 2**20

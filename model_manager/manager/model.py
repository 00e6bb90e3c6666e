"""One model in the manager: who uses it, and when its engines are started, restarted, given up and stopped.

A state machine without IO or clock: each event brings the time, and each decision is put in the outbox.

    idle ──open, submit──► waiting ──admitted──► loading ──ready──► ready ──death──► restarting ──ready──► ready
     ▲                                              └──cannot load──► failed ◄──too many deaths──┘            │
     └────────────────────────── nothing to do, or another model needs its memory ────────────────────────────┘

The diagram shows one engine. The model is ready while any of its engines is, and fails when the last of them fails.
While not all models fit in memory, one that is known from an earlier load is opened without a load, for clients that
are content with that (`on_demand`): it is idle again, and waits once it has a request. `Requests` decides what happens
to the model's requests, `MemoryScheduler` when it is admitted, and when it makes room.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

import msgspec

from ..store.memory import MemoryNeed
from ..wire.config import ManagerConfig, ModelConfig
from ..wire.engine_messages import StepReport
from ..wire.errors import EngineLost, ErrorInfo, ModelLoadFailed, counted
from ..wire.messages import ModelFailed, ModelReady, ModelWarnings, OpenModel
from ..wire.request import FinishReason, Request
from ..wire.shared_settings import unmet_settings
from ..wire.status import ModelInfo, ModelStatus
from .counts import ModelCounts
from .engine_pool import RUNNING, EnginePool, EngineSlot, State
from .gpus import EngineSetup
from .jobs import JobCounts
from .memory_account import MACHINE, LoadRequest
from .memory_scheduler import ModelUse
from .outbox import Outbox
from .requests import Requests
from .results import KeptResults

QUEUE = 8
"""Factor on the requests granted per model while not all models fit in memory: the more of them wait, the fewer times a
model is loaded.
"""
_GIB = 2**30
log = logging.getLogger(__name__)


class Model:
    """The state machine of one model."""

    def __init__(
        self,
        config: ModelConfig,
        folder: str,
        setups: Sequence[EngineSetup],
        *,
        settings: ManagerConfig,
        outbox: Outbox,
        kept: KeptResults,
        jobs: JobCounts,
        counts: ModelCounts,
        need: MemoryNeed,
        known: ModelInfo | None = None,
    ) -> None:
        """An engine for each of `setups`; each engine needs `need` of memory. `known`: what an earlier load found."""
        self.key = config.key
        self.config = config
        self.users: dict[int, float] = {}
        """Clients that have it open, and for how many seconds the requests of each go on if it dies."""
        self.counts = counts
        self._engines = EnginePool(config.key, folder, setups, settings.lookahead, outbox, counts)
        self._requests = Requests(config.key, self._engines, settings, outbox, kept, jobs, counts)
        self._known = known
        self._settings = settings
        self._outbox = outbox
        self._waiting: dict[int, OpenModel] = {}
        self._loads = 0
        self._is_crowded = False
        self._ready_since = math.inf
        self._has_served = False
        self.load_request, self._engines_in_a_place = _load_request(config, setups, need)
        self._last_used = -math.inf
        self._unused_since = -math.inf
        self._awaited: dict[str, float] = {}
        """Jobs whose client died, and until when they may come back."""
        self._job_of: dict[int, str] = {}
        """The job of each client's latest request."""
        self._weights: dict[int, float] = {}
        """The weight of each client's job."""
        self._jobs = jobs

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return self._engines.folder

    @property
    def state(self) -> State:
        """The model's state: the best state of any of its engines."""
        return self._engines.state

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, client: int, message: OpenModel, now: float) -> None:
        """A client wants the model. Once the model is ready, or opened on demand, the client gets ModelReady with the
        settings that it asked for and that are not in force.
        """
        self.users[client] = self._grace(message.manager)
        self._weights[client] = message.manager.weight
        self._requests.credits.join(client)
        self._last_used = now
        self._waiting[client] = message
        if self.state is State.READY:
            self._welcome(list(self._waiting))
        elif self.state not in RUNNING:
            self._engines.wait()

    def leave(self, client: int, *, died: bool, now: float, lingers: bool = True) -> None:
        """A client closed the model, or died. `lingers`: after the last client, engines stay for `linger` seconds.

        If it died, they stay until its job comes back or requests of its may go on no longer: answers that it has not
        taken, or not written, end with the manager. A job whose requests are all answered may have written none.
        """
        if client not in self.users:
            return
        until = now + self.users.pop(client)
        self._waiting.pop(client, None)
        self._weights.pop(client)
        orphans = self._requests.leave(client, until if died else None)
        job = self._job_of.pop(client, None)
        self._awaited |= dict.fromkeys(orphans | ({job} if died and job is not None else set()), until)
        self._unused_since = now if lingers else -math.inf

    def _grace(self, asked: ManagerConfig) -> float:
        """What a client asks for, up to the time that answers are kept; the manager's own, if that is longer."""
        return max(self._settings.orphan_grace, min(asked.orphan_grace, self._settings.results_kept))

    def outstanding(self, client: int) -> int:
        """Requests of a user that are not answered."""
        return self._requests.credits.outstanding(client)

    def submit(self, client: int, request: Request, now: float) -> None:
        """Take in a request of a client that has the model open."""
        self._last_used = now
        self._job_of[client] = request.job
        self._awaited.pop(request.job, None)
        self._jobs.weighs(request.job, self._weights[client])
        self._requests.submit(client, request, now, self._weights[client])
        if self._requests.entries and self.state is State.IDLE:
            self._engines.wait()

    def computed_for(self, client: int) -> dict[str, int]:
        """Tokens that engines have computed for a client's running requests."""
        return self._requests.computed_for(client)

    def send_to_keep(self, client: int) -> None:
        """Send a client what it keeps in case this manager dies."""
        self._requests.send_to_keep(client)

    def cancel(self, client: int, request_id: str, now: float) -> None:
        """A client cancels one of its requests."""
        self._requests.cancel(client, request_id, now)

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, cache: int | None) -> None:
        """Load it, with KV caches of `cache` bytes in each of its places; None: its engines choose their size."""
        self._loads += 1
        self._ready_since, self._has_served = math.inf, False
        self._engines.start(None if cache is None else cache / self._engines_in_a_place / _GIB)

    def resize_cache(self, cache: int) -> None:
        """Let its KV caches take at most `cache` bytes in each of its places."""
        self._engines.resize_caches(int(cache / self._engines_in_a_place))

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of KV cache in each of its places; 0 if they cannot change, None while it is not known."""
        size = self._engines.cache_bytes
        return size and size // len(self.load_request.places)

    def unload(self) -> None:
        """Make room for another model. Requests that came too late to be finished first wait until it is back."""
        self._engines.stop(State.IDLE)
        self._requests.last_call = None
        if self._requests.entries:
            self._engines.wait()

    def drain(self, now: float) -> None:
        """Finish the requests that have arrived by now, and no others."""
        self._requests.last_call = now

    def end_drain(self) -> None:
        """Go on with all requests."""
        self._requests.last_call = None

    def crowd(self, is_crowded: bool) -> None:
        """Not all models fit at once: clients may send more requests, which wait until their model is loaded."""
        if is_crowded is not self._is_crowded:
            self._is_crowded = is_crowded
            self._set_capacity()

    @property
    def can_load_on_demand(self) -> bool:
        """Whether it waits for memory, an earlier load of it is known, and a client is content with that."""
        is_wanted = any(message.on_demand for message in self._waiting.values())
        return self.state is State.WAITING and is_wanted and self._known is not None and not self.config.pinned

    def open_on_demand(self) -> None:
        """Open it for the clients that are content with that; if these are all, its first request loads it."""
        assert self._known is not None, "opened without a description"
        self._engines.describe(self._known)
        self._set_capacity()
        self._welcome([client for client, message in self._waiting.items() if message.on_demand])
        if not (self._waiting or self._requests.entries):
            self._engines.stop(State.IDLE)

    def _set_capacity(self) -> None:
        self._requests.credits.set_capacity(self._engines.capacity * (QUEUE if self._is_crowded else 1))

    @property
    def is_opening(self) -> bool:
        """Whether a client waits for it, and can send nothing before it is loaded."""
        return bool(self._waiting)

    @property
    def opening_weight(self) -> float:
        """The largest weight of the clients that wait for it; 0 if none does."""
        return max((self._weights[client] for client in self._waiting), default=0.0)

    @property
    def jobs(self) -> dict[str, float]:
        """The weights of the jobs that have requests for it."""
        return self._requests.shares.jobs

    @property
    def clients_of_jobs(self) -> dict[str, list[int]]:
        """Its clients by the job of their latest request; not those that have sent none."""
        found: dict[str, list[int]] = {}
        for client, job in self._job_of.items():
            found.setdefault(job, []).append(client)
        return found

    def use(self, share: float) -> ModelUse:
        """The loaded model as the memory scheduler sees it. `share`: see ModelUse."""
        is_ready, cache = self.state is State.READY, self.cache_bytes
        return ModelUse(
            works=not is_ready or self._requests.has_work,
            last_used=self._last_used,
            ready_since=self._ready_since if is_ready else math.inf,
            load_seconds=self._engines.info.load_seconds if self._engines.info else 0.0,
            has_served=self._has_served,
            is_pinned=self.config.pinned and bool(self.users),
            share=share,
            can_shrink=None if cache is None else cache > 0,
        )

    # ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self, engine: int, info: ModelInfo, now: float) -> None:
        """An engine has loaded the model."""
        self._engines.ready(self._engines.slots[engine], info)
        if not info.is_cut:
            self._known = info
        self._last_used = now
        self._ready_since = min(now, self._ready_since)
        self._set_capacity()
        self._welcome(list(self._waiting))

    def cache_resized(self, engine: int, cache_bytes: int) -> None:
        """An engine has changed the size of its KV cache."""
        slot = self._engines.slots[engine]
        slot.cache_bytes, slot.is_resizing = cache_bytes, False

    def _welcome(self, clients: Iterable[int]) -> None:
        info = self._engines.info
        assert info is not None, "opened without a description"
        for client in clients:
            message = self._waiting.pop(client)
            unmet = unmet_settings(message.config, self._engines.config)
            unmet += unmet_settings(message.manager, self._settings)
            self._outbox.to_client(client, ModelReady(self.key, info, unmet))

    def report(self, engine: int, report: StepReport, now: float) -> None:
        """An engine reports one step: tokens, outputs and failures."""
        slot = self._engines.slots[engine]
        self._requests.report(slot, report, now)
        if report.failures or any(output.finish_reason is not FinishReason.ABORT for output in report.outputs):
            slot.deaths_in_row = slot.killers_in_row = 0
            self._has_served = True
        self._last_used = now
        slot.stats = report.stats or slot.stats

    def warn(self, texts: list[str]) -> None:
        """An engine warns its users."""
        for client in self.users:
            self._outbox.to_client(client, ModelWarnings(self.key, texts))

    def cannot_load(self, engine: int, error: ErrorInfo, now: float) -> None:
        """An engine reports that it cannot load the model, or that it can answer no request any more."""
        self._give_up(self._engines.slots[engine], error, now)

    def died(self, engine: int, reason: str, *, load_failed: bool, now: float) -> None:
        """An engine ended without being asked to. Its requests go to the next engine that has room.

        `load_failed`: it failed while it loaded the model, and a new engine would fail too.
        """
        slot = self._engines.slots[engine]
        self._engines.keep_counts(slot)
        if load_failed and slot.state is State.LOADING:
            slot.state = State.FAILED
            self._give_up(slot, ModelLoadFailed(f"{self.config.model}: {reason}").info(), now)
            return
        self.counts.restarts += 1
        slot.deaths_in_row += 1
        self._requests.take_back(slot, reason, now)
        if max(slot.deaths_in_row, slot.killers_in_row) > self._settings.max_restarts:
            how = f"its inference process died {counted(slot.deaths_in_row, 'time')} in a row"
            if slot.deaths_in_row <= self._settings.max_restarts:
                how = f"{counted(slot.killers_in_row, 'request')} in a row ended its inference process again and again"
            lost = f"{self.config.model}: {how}: {reason}"
            slot.state = State.FAILED
            self._give_up(slot, EngineLost(lost).info(), now)
        else:
            self._engines.restart(slot)

    def _give_up(self, slot: EngineSlot, error: ErrorInfo, now: float) -> None:
        """Go on without this engine, if there is another, which gets its requests."""
        self._engines.end(slot, State.FAILED)
        if not any(other.state in RUNNING for other in self._engines.slots):
            self.fail(error)
            return
        log.warning("%s: engine %d is given up, others go on: %s", self.key, slot.index, error.message)
        self._requests.take_back(slot, error.message, now, died=False)
        self._set_capacity()

    def refuse(self, clients: Iterable[int], error: ErrorInfo, now: float) -> None:
        """Give the model up for some of its clients: ModelFailed answers all their outstanding requests."""
        for client in clients:
            self.leave(client, died=False, now=now)
            self._outbox.to_client(client, ModelFailed(self.key, error))

    def fail(self, error: ErrorInfo) -> None:
        """Give the model up. Every client of it gets ModelFailed, which answers all of its outstanding requests."""
        self._engines.stop(State.FAILED)
        for client in self.users:
            self._outbox.to_client(client, ModelFailed(self.key, error))
        self.users, self._waiting, self._job_of, self._weights = {}, {}, {}, {}
        self._requests.last_call = None
        self._requests.drop_all()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """End requests whose time is up, and the engines when nobody needs them."""
        self._requests.tick(now)
        self._awaited = {job: until for job, until in self._awaited.items() if now < until}
        if not self._requests.entries and self.state in RUNNING and self._is_unneeded(now):
            self.unload()
        elif not self.users and not self._requests.entries and self.state is State.WAITING:
            self._engines.stop(State.IDLE)
        if self._engines.info is not None:
            self._requests.share_credits(now)

    def _is_unneeded(self, now: float) -> bool:
        if self.users and self.config.pinned:
            return False
        if self.users:
            return self.state is State.READY and now - self._last_used >= self._settings.idle_timeout
        return not self._awaited and now - self._unused_since >= self._settings.linger

    @property
    def is_needed(self) -> bool:
        """Whether anyone uses it, or an engine of it runs."""
        return bool(self.users or self._requests.entries) or self.state in RUNNING

    def pump(self, now: float) -> None:
        """Send the engines as many requests as they have room for; send clients new tokens, and new limits if due."""
        if self._requests.credits.due and self._engines.info is not None:
            self._requests.share_credits(now)
        self._requests.hand_over(now)
        self._requests.send_progress()

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, pids: Sequence[int], waits_for: str) -> ModelStatus:
        """The model's counts at this moment; `pids` are the process ids of its engines."""
        stats = self._engines.stats()
        if not self._requests.entries:
            stats = msgspec.structs.replace(stats, running=0, waiting=0, tokens_per_s=0.0, batch=0.0, blocks_held=0.0)
        waiting = stats.waiting + self._requests.num_unsent
        return ModelStatus(
            key=self.key,
            model=self.config.name,
            state=self.state.value,
            pids=list(pids),
            clients=len(self.users),
            restarts=self.counts.restarts,
            outstanding=len(self._requests.entries),
            info=self._engines.info,
            stats=msgspec.structs.replace(stats, waiting=waiting),
            revision=self.config.revision or "",
            waits_for=waits_for,
            loads=self._loads,
            credits_given=self._requests.credits.given,
            credits_used=self._requests.credits.in_use,
            requests=self.counts.requests(),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if the parts contradict each other (tests)."""
        self._requests.check_integrity(self.users)


def _load_request(config: ModelConfig, setups: Sequence[EngineSetup], need: MemoryNeed) -> tuple[LoadRequest, float]:
    """The memory that the model needs in each place, and engines per place: below 1 if an engine has several GPUs."""
    places = tuple(gpu for setup in setups for gpu in setup.gpus) or (MACHINE,)
    engines = len(setups) / len(places)
    in_a_place = MemoryNeed(*(int(size * engines) for size in (need.fixed, need.least_cache, need.most_cache)))
    return LoadRequest(config.key, config.model, in_a_place, places), engines

"""One model in the manager: who uses it, and when its engines start, are replaced, are given up and end.

A state machine without IO or clock: each event brings the time, all that is decided goes to the outbox.

    idle ──open, submit──► loading ──ready──► ready ──death──► restarting ──ready──► ready ──nothing to do──► idle
                              └──cannot load──► failed ◄──too many deaths──┘

That is each engine's life, and the model's, which is ready while any of its engines is and fails with the last of them.
One that takes another's place waits, before it is loaded, for the word that there is room (succession.py).
What becomes of requests meanwhile is `Requests`' to decide.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import msgspec

from ..wire.config import ManagerConfig, ModelConfig
from ..wire.errors import EngineLost, ErrorInfo, ModelDoesNotFit, ModelLoadFailed, ModelReplaced
from ..wire.messages import FinishReason, ModelFailed, ModelReady, OpenModel, Request, StepReport
from ..wire.shared_settings import unmet_settings
from ..wire.status import EngineStats, ModelInfo, ModelStatus
from .engine_pool import RUNNING, EnginePool, Slot, State
from .gpus import Place
from .jobs import JobCounts
from .memory import Footprint
from .outbox import Outbox
from .requests import Requests
from .results import KeptResults

log = logging.getLogger(__name__)


class Model:
    """The state machine of one model."""

    def __init__(
        self,
        config: ModelConfig,
        folder: str,
        places: Sequence[Place],
        *,
        settings: ManagerConfig,
        outbox: Outbox,
        kept: KeptResults,
        jobs: JobCounts,
    ) -> None:
        """An engine for each of `places`."""
        self.key = config.key
        self.config = config
        self.users: dict[int, str] = {}
        """Clients, and the group that each changes models with."""
        self.replaces: set[str] = set()
        """Keys of the models whose places it takes, until that is done."""
        self.client_config: ModelConfig | None = None
        """What clients that are to follow are told to open."""
        self.wish = 0
        """Which of all such wishes was the last for this model; the later one holds."""
        self.refused_beside = False
        """Its engine has said that it does not fit beside them."""
        self._is_beside = False
        self._engines = EnginePool(config.key, folder, places, settings.lookahead, outbox)
        self._requests = Requests(config.key, self._engines, settings, outbox, kept, jobs)
        self._settings = settings
        self._outbox = outbox
        self._waiting: dict[int, OpenModel] = {}
        self._waits_for_room = False
        self._restarts = 0
        self._last_used = -math.inf
        self._unused_since = -math.inf

    @property
    def state(self) -> State:
        """Where it stands."""
        return State.WAITING if self._waits_for_room else self._engines.state

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, client: int, message: OpenModel, now: float) -> None:
        """A client wants the model; once it is ready the client is told so, and which of its settings do not hold.

        Who takes another's place waits for room, and who gives way is not loaded meanwhile.
        """
        self.users[client] = message.group
        self._requests.credits.join(client)
        self._last_used = now
        self._waiting[client] = message
        if message.replaces not in ("", self.key):
            self.replaces.add(message.replaces)
            self.client_config = message.client_config or message.config
        if self.state is State.READY:
            self._welcome()
        elif self.state in (State.IDLE, State.FAILED) and not self._requests.is_paused:
            self._waits_for_room = bool(self.replaces)
            if not self.replaces:
                self._engines.start()

    def leave(self, client: int, *, died: bool, now: float) -> None:
        """A client is gone, with or without having said so."""
        if client not in self.users:
            return
        del self.users[client]
        self._waiting.pop(client, None)
        self._requests.leave(client, died=died, now=now)
        self._unused_since = now

    def outstanding(self, client: int) -> int:
        """Requests of a user that are not answered."""
        return self._requests.credits.outstanding(client)

    def submit(self, client: int, request: Request, now: float) -> None:
        """A request of a user."""
        self._last_used = now
        self._requests.submit(client, request, now)
        if self._requests.entries and self.state is State.IDLE:
            self._engines.start()

    def cancel(self, client: int, request_id: str, now: float) -> None:
        """A user wants a request no more."""
        self._requests.cancel(client, request_id, now)

    # ── taking another's place, and giving way ───────────────────────────────────────────────────────────────────────

    def start(self, *, beside: bool) -> None:
        """There is room for it now, beside those that it replaces or as they are gone."""
        self._waits_for_room, self._is_beside = False, beside
        self._engines.start()

    def stop_waiting(self) -> None:
        """It takes nobody's place any more: it has it, or is not wanted."""
        self._waits_for_room = self._is_beside = self.refused_beside = False
        self.replaces.clear()

    def pause(self, paused: bool) -> None:
        """Take no new requests, and give no credits, as long as another model is on its way to its place."""
        self._requests.pause(paused)
        if not paused and self._waiting and self.state is State.IDLE:
            self._engines.start()

    def unload_if_empty(self) -> None:
        """End its engines once they have nothing to do; its clients stay."""
        if not self._requests.entries and self.state in RUNNING:
            self._engines.stop(State.IDLE)

    def send_on(self) -> None:
        """Clients that wait for it to be loaded, perhaps with requests, are to go where it gives way to."""
        replaced = ModelReplaced(f"another model has taken the place of {self.config.model}").info()
        for client in list(self._waiting) if self.state is State.IDLE else ():
            self._outbox.to_client(client, ModelFailed(self.key, replaced))
            del self.users[client], self._waiting[client]
            self._requests.credits.leave(client)

    @property
    def groups(self) -> set[str]:
        """Of its clients that change models."""
        return set(self.users.values()) - {""}

    @property
    def footprint(self) -> Footprint:
        """What it takes of the machine."""
        infos = [slot.info for slot in self._engines.slots if slot.info is not None]
        return Footprint(
            key=self.key,
            config=self.config,
            folder=self._engines.folder,
            engines=len(self._engines.slots),
            used=self._engines.stats().rss_mb / 1024,
            on_gpu=any(slot.place.gpus for slot in self._engines.slots),
            gpu_free=sum(info.gpu_free_gib for info in infos),
        )

    # ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self, engine: int, info: ModelInfo, now: float) -> None:
        """An engine has loaded the model."""
        slot = self._engines.slots[engine]
        slot.state, slot.info = State.READY, info
        self._last_used = now
        self._requests.credits.set_capacity(self._engines.capacity)
        self._welcome()

    def _welcome(self) -> None:
        info = self._engines.info
        assert info is not None, "ready without a description"
        for client, message in self._waiting.items():
            unmet = unmet_settings(message.config, self._engines.config)
            unmet += unmet_settings(message.manager, self._settings)
            self._outbox.to_client(client, ModelReady(self.key, info, unmet))
        self._waiting.clear()

    def report(self, engine: int, report: StepReport, now: float) -> None:
        """What a step of an engine brought about."""
        slot = self._engines.slots[engine]
        self._requests.report(slot, report, now)
        if report.failures or any(output.finish_reason is not FinishReason.ABORT for output in report.outputs):
            slot.deaths_in_row = slot.killers_in_row = 0
        self._last_used = now
        slot.stats = report.stats or slot.stats

    def cannot_load(self, engine: int, error: ErrorInfo) -> None:
        """An engine says that it cannot load the model; where it says that there is no room, others may make some."""
        if self._is_beside and error.kind == ModelDoesNotFit.__name__:
            log.info("%s does not fit beside %s: %s", self.key, ", ".join(sorted(self.replaces)), error.message)
            self._engines.stop(State.IDLE)
            self._is_beside, self.refused_beside, self._waits_for_room = False, True, True
            return
        self._give_up(self._engines.slots[engine], error)

    def died(self, engine: int, reason: str, *, hopeless: bool, now: float) -> None:
        """An engine ended; `hopeless` if another one would while loading. Its requests go to the next that has room."""
        slot = self._engines.slots[engine]
        slot.stats = EngineStats()
        if hopeless and slot.state is State.LOADING:
            slot.state = State.FAILED
            self._give_up(slot, ModelLoadFailed(f"{self.config.model}: {reason}").info())
            return
        self._restarts += 1
        slot.deaths_in_row += 1
        self._requests.take_back(slot, reason, now)
        if max(slot.deaths_in_row, slot.killers_in_row) > self._settings.max_restarts:
            lost = f"{self.config.model}: its inference process died {slot.deaths_in_row} times in a row: {reason}"
            slot.state = State.FAILED
            self._give_up(slot, EngineLost(lost).info())
        else:
            self._engines.restart(slot)

    def _give_up(self, slot: Slot, error: ErrorInfo) -> None:
        """Go on without this engine, if there is another."""
        self._engines.end(slot, State.FAILED)
        if not any(other.state in RUNNING for other in self._engines.slots):
            self.fail(error)
            return
        log.warning("%s: engine %d is given up, others go on: %s", self.key, slot.index, error.message)
        self._requests.credits.set_capacity(self._engines.capacity)

    def fail(self, error: ErrorInfo) -> None:
        """Give the model up: every user is told so, which is the answer to all that they wait for."""
        self._engines.stop(State.FAILED)
        for client in self.users:
            self._outbox.to_client(client, ModelFailed(self.key, error))
        self.users, self._waiting = {}, {}
        self._requests.drop_all()
        self.stop_waiting()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """End requests whose time is up, and the engines when nobody needs them."""
        self._requests.tick(now)
        if not self._requests.entries and self.state in RUNNING and self._is_unneeded(now):
            self._engines.stop(State.IDLE)
        if self._engines.info is not None:
            self._requests.share_credits(now)

    def _is_unneeded(self, now: float) -> bool:
        if self.users:
            return self.state is State.READY and now - self._last_used >= self._settings.idle_timeout
        return now - self._unused_since >= self._settings.linger

    @property
    def is_needed(self) -> bool:
        """Whether anyone uses it, or an engine of it runs."""
        return bool(self.users or self._requests.entries) or self.state in RUNNING

    def pump(self, now: float) -> None:
        """Hand over what the engines have room for, and new limits where they should not wait."""
        if self._requests.credits.due and self.state is State.READY:
            self._requests.share_credits(now)
        self._requests.hand_over(now)

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, pids: Sequence[int]) -> ModelStatus:
        """A snapshot; `pids` of the engines."""
        stats = self._engines.stats()
        if not self._requests.entries:
            stats = msgspec.structs.replace(stats, running=0, waiting=0, tokens_per_s=0.0)
        waiting = stats.waiting + self._requests.num_unsent
        return ModelStatus(
            key=self.key,
            model=self.config.model,
            state=self.state.value,
            pids=list(pids),
            clients=len(self.users),
            restarts=self._restarts,
            outstanding=len(self._requests.entries),
            info=self._engines.info,
            stats=msgspec.structs.replace(stats, waiting=waiting),
            revision=self.config.revision or "",
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if the parts contradict each other (tests)."""
        self._requests.check_integrity(self.users)

"""One model in the manager: its requests, who waits for each, what becomes of them when an engine or a client dies.

A state machine without IO or clock: each event brings the time, all that is decided goes to the outbox. Every
request of a client that has the model open is answered exactly once, unless the model as a whole is given up.

    idle ──open, submit──► loading ──ready──► ready ──death──► restarting ──ready──► ready ──nothing to do──► idle
                              └──cannot load──► failed ◄──too many deaths──┘

That is each engine's life, and the model's, which is ready while any of its engines is and fails with the last of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import msgspec

from model_manager.manager.credits import Credits
from model_manager.manager.engine_pool import RUNNING, EnginePool, Slot, State
from model_manager.manager.entry import Entry
from model_manager.manager.gpus import Place
from model_manager.manager.jobs import JobCounts
from model_manager.manager.outbox import Outbox, ToEngine
from model_manager.manager.results import KeptResults
from model_manager.wire.batching import request_batches
from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.errors import (
    DeadlineExceeded,
    EngineKiller,
    EngineLost,
    ErrorInfo,
    InvalidRequest,
    ModelLoadFailed,
)
from model_manager.wire.messages import (
    Cancel,
    EngineStats,
    Failure,
    FinishReason,
    ModelFailed,
    ModelInfo,
    ModelReady,
    ModelStatus,
    Output,
    Request,
    StepReport,
    Submit,
)
from model_manager.wire.messages import (
    Credits as CreditsMessage,
)

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
        self.users: set[int] = set()
        self.entries: dict[str, Entry] = {}
        self._engines = EnginePool(config.key, folder, places, settings.lookahead, outbox)
        self._settings = settings
        self._outbox = outbox
        self._kept = kept
        self._jobs = jobs
        self._credits = Credits()
        self._waiting: set[int] = set()
        self._given_up: set[int] = set()
        self._unsent: dict[str, Entry] = {}
        self._suspects: dict[str, Entry] = {}
        self._restarts = 0
        self._last_used = -math.inf
        self._unused_since = -math.inf

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._engines.state

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, client: int, now: float) -> None:
        """A client wants the model; it is told when the model is ready, at once if it is."""
        self.users.add(client)
        self._given_up.discard(client)
        self._credits.join(client)
        self._last_used = now
        self._waiting.add(client)
        if self.state is State.READY:
            self._welcome()
        elif self.state in (State.IDLE, State.FAILED):
            self._engines.start()

    def leave(self, client: int, *, died: bool, now: float) -> None:
        """A client is gone: requests that only it waited for are orphans if it died, else they are cancelled."""
        self._given_up.discard(client)
        if client not in self.users:
            return
        self.users.discard(client)
        self._waiting.discard(client)
        self._credits.leave(client)
        self._unused_since = now
        for entry in [entry for entry in self.entries.values() if client in entry.receivers]:
            entry.receivers = [receiver for receiver in entry.receivers if receiver != client]
            if not entry.receivers and died:
                entry.orphaned = now
            elif not entry.receivers:
                self._abandon(entry)

    def was_given_up_for(self, client: int) -> bool:
        """Whether the client has been told that the model failed, and not opened it since."""
        return client in self._given_up

    def outstanding(self, client: int) -> int:
        """Requests of a user that are not answered."""
        return self._credits.outstanding(client)

    def submit(self, client: int, request: Request, now: float) -> None:
        """A request of a user: answered from what is kept, attached to what runs, or started."""
        self._credits.take(client, now)
        self._last_used = now
        kept = self._kept.find(self.key, request)
        entry = self.entries.get(request.request_id)
        if entry is not None and not entry.is_same_work(request):
            error = InvalidRequest(f"request_id {request.request_id!r} is taken by another prompt or parameters")
            self._answer(client, Failure(request.request_id, error.info()), now)
        elif entry is not None:
            entry.receivers.append(client)
            entry.orphaned = None
        elif kept is not None:
            self._answer(client, kept, now)
        else:
            self._accept(client, request, now)

    def _accept(self, client: int, request: Request, now: float) -> None:
        entry = Entry(request, arrived=now, receivers=[client], tokens=list(request.output_token_ids))
        if request.output_logprobs is not None:
            entry.logprobs.append(request.output_logprobs)
        self.entries[request.request_id] = self._unsent[request.request_id] = entry
        if self.state is State.IDLE:
            self._engines.start()

    def cancel(self, client: int, request_id: str, now: float) -> None:
        """A user wants a request no more: it is answered at once; others that wait for the same still get theirs."""
        entry = self.entries.get(request_id)
        if entry is None or client not in entry.receivers:
            return  # answered already, and the answer is on its way
        entry.receivers.remove(client)
        self._answer(client, entry.cut_short(FinishReason.ABORT, now), now)
        if not entry.receivers:
            self._abandon(entry)

    def _abandon(self, entry: Entry) -> None:
        """Nobody waits for it: forget it, or have the engine end it; until it has, a retry finds it here."""
        entry.orphaned = None
        if entry.engine is None:
            self._forget(entry)
        elif not entry.cancelled:
            entry.cancelled = True
            self._outbox.add(ToEngine(self.key, Cancel(self.key, [entry.request.request_id]), entry.engine))

    def _forget(self, entry: Entry) -> None:
        request_id = entry.request.request_id
        del self.entries[request_id]
        self._unsent.pop(request_id, None)
        self._suspects.pop(request_id, None)
        self._leave_engine(entry)

    def _leave_engine(self, entry: Entry) -> None:
        if entry.engine is not None:
            self._engines.slots[entry.engine].remove(entry)
            entry.take_back()

    def _answer(self, client: int, answer: Output | Failure, now: float) -> None:
        self._credits.give_back(client, now)
        self._outbox.answer(client, self.key, answer)

    # ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self, engine: int, info: ModelInfo, now: float) -> None:
        """An engine has loaded the model."""
        slot = self._engines.slots[engine]
        slot.state, slot.info = State.READY, info
        self._last_used = now
        self._credits.set_capacity(self._engines.capacity)
        self._welcome()

    def _welcome(self) -> None:
        info = self._engines.info
        assert info is not None, "ready without a description"
        for client in self._waiting:
            self._outbox.to_client(client, ModelReady(self.key, info))
        self._waiting.clear()

    def report(self, engine: int, report: StepReport, now: float) -> None:
        """What a step of an engine brought about."""
        slot = self._engines.slots[engine]
        for request_id, tokens in report.progress.items():
            if (entry := slot.entries.get(request_id)) is not None:
                entry.tokens.extend(tokens)
                entry.progressed = True
                if request_id in report.logprobs:
                    entry.logprobs.append(report.logprobs[request_id])
        for output in report.outputs:
            self._finished(slot, output, now)
        for failure in report.failures:
            if (entry := slot.entries.get(failure.request_id)) is not None:
                self._fail_one(entry, failure, now)
        if report.failures or any(output.finish_reason is not FinishReason.ABORT for output in report.outputs):
            slot.deaths_in_row = slot.killers_in_row = 0
        self._last_used = now
        slot.stats = report.stats or slot.stats

    def _finished(self, slot: Slot, output: Output, now: float) -> None:
        entry = slot.entries.get(output.request_id)
        if entry is None:
            return
        if output.finish_reason is FinishReason.ABORT and entry.receivers:
            self._resume(entry)  # a retry came for it after it was cancelled
            return
        self._conclude(entry, output, now)

    def _conclude(self, entry: Entry, output: Output, now: float) -> None:
        self._forget(entry)
        if output.finish_reason is not FinishReason.ABORT:
            self._kept.add(self.key, entry.request, output, now)
            self._jobs.finished(entry.request.job, output, first=entry.is_first)
        for client in entry.receivers:
            self._answer(client, output, now)

    def _resume(self, entry: Entry) -> None:
        self._leave_engine(entry)
        self._unsent[entry.request.request_id] = entry

    def _fail_one(self, entry: Entry, failure: Failure, now: float) -> None:
        self._forget(entry)
        if entry.is_first:
            self._jobs.failed(entry.request.job)
        for client in entry.receivers:
            self._answer(client, failure, now)

    def cannot_load(self, engine: int, error: ErrorInfo) -> None:
        """An engine says that it cannot load the model."""
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
        self._take_back(slot, reason, now)
        if max(slot.deaths_in_row, slot.killers_in_row) > self._settings.max_restarts:
            lost = f"{self.config.model}: its inference process died {slot.deaths_in_row} times in a row: {reason}"
            slot.state = State.FAILED
            self._give_up(slot, EngineLost(lost).info())
        else:
            self._engines.restart(slot)

    def _take_back(self, slot: Slot, reason: str, now: float) -> None:
        """What the dead engine had comes before what has not been sent yet."""
        waiting, self._unsent = self._unsent, {}
        for entry in list(slot.entries.values()):
            # Coming further on this engine than on the last is an alibi: what kills engines is stuck where it kills.
            entry.deaths = 1 if entry.progressed else entry.deaths + 1
            self._resume(entry)
            if not entry.receivers and entry.orphaned is None:
                self._forget(entry)
            elif entry.deaths > self._settings.max_deaths_per_request:
                self._fail_killer(slot, entry, reason, now)
            elif entry.deaths >= max(1, self._settings.max_deaths_per_request):
                self._suspects[entry.request.request_id] = entry
        self._unsent |= waiting

    def _fail_killer(self, slot: Slot, entry: Entry, reason: str, now: float) -> None:
        error = EngineKiller(f"the inference process died {entry.deaths} times while it ran this request: {reason}")
        self._fail_one(entry, Failure(entry.request.request_id, error.info()), now)
        slot.deaths_in_row = 0
        slot.killers_in_row += 1

    def _give_up(self, slot: Slot, error: ErrorInfo) -> None:
        """Go on without this engine, if there is another."""
        self._engines.end(slot, State.FAILED)
        if not any(other.state in RUNNING for other in self._engines.slots):
            self.fail(error)
            return
        log.warning("%s: engine %d is given up, others go on: %s", self.key, slot.index, error.message)
        self._credits.set_capacity(self._engines.capacity)

    def fail(self, error: ErrorInfo) -> None:
        """Give the model up: every user is told so, which is the answer to all that they wait for."""
        self._engines.stop(State.FAILED)
        for client in self.users:
            self._outbox.to_client(client, ModelFailed(self.key, error))
        self._given_up |= self.users
        self.users, self._waiting, self._credits = set(), set(), Credits()
        self.entries, self._unsent, self._suspects = {}, {}, {}
        for slot in self._engines.slots:
            slot.clear()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """Cancel orphans whose time is up, end what is overdue; end the engines when nobody needs them."""
        for entry in [entry for entry in self.entries.values() if entry.orphaned is not None]:
            if now - (entry.orphaned or 0.0) >= self._settings.orphan_grace:
                self._abandon(entry)
        for entry in [entry for entry in self._unsent.values() if entry.is_overdue(now)]:
            self._end_overdue(entry, now)
        if not self.entries and self.state in RUNNING and self._is_unneeded(now):
            self._engines.stop(State.IDLE)
        if self._engines.info is not None:
            self._share_credits(now)

    def _end_overdue(self, entry: Entry, now: float) -> None:
        """What an engine has it ends itself; this waits for one, perhaps for one that is to go on with it."""
        if entry.tokens:
            self._conclude(entry, entry.cut_short(FinishReason.DEADLINE, now), now)
        else:
            late = DeadlineExceeded(f"no token after deadline={entry.request.params.deadline} seconds")
            self._fail_one(entry, Failure(entry.request.request_id, late.info()), now)

    def _is_unneeded(self, now: float) -> bool:
        if self.users:
            return self.state is State.READY and now - self._last_used >= self._settings.idle_timeout
        return now - self._unused_since >= self._settings.linger

    @property
    def is_needed(self) -> bool:
        """Whether anyone uses it, or an engine of it runs."""
        return bool(self.users or self.entries) or self.state in RUNNING

    def pump(self, now: float) -> None:
        """Hand over what the engines have room for, and new limits where they should not wait."""
        if self._credits.due and self.state is State.READY:
            self._share_credits(now)
        for slot, entries in self._engines.assign(self._unsent, self._suspects) if self._unsent else ():
            for entry in entries:
                del self._unsent[entry.request.request_id]
            for requests in request_batches(entry.as_sent(now) for entry in entries):
                self._outbox.add(ToEngine(self.key, Submit(self.key, requests), slot.index))

    def _share_credits(self, now: float) -> None:
        for client, limit in self._credits.divide(now).items():
            self._outbox.to_client(client, CreditsMessage(self.key, limit))

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, pids: Sequence[int]) -> ModelStatus:
        """A snapshot; `pids` of the engines."""
        stats = self._engines.stats()
        if not self.entries:
            stats = msgspec.structs.replace(stats, running=0, waiting=0, tokens_per_s=0.0)
        waiting = stats.waiting + len(self._unsent)
        return ModelStatus(
            key=self.key,
            model=self.config.model,
            state=self.state.value,
            pid=pids[0] if pids else None,
            clients=len(self.users),
            restarts=self._restarts,
            outstanding=len(self.entries),
            info=self._engines.info,
            stats=msgspec.structs.replace(stats, waiting=waiting),
            num_engines=len(self._engines.slots),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if the parts contradict each other (tests)."""
        for slot in self._engines.slots:
            slot.check_integrity()
            sent = {name for name, entry in self.entries.items() if entry.engine == slot.index}
            assert sent == set(slot.entries), "the account of what an engine has is wrong"
        assert set(self._unsent) == {name for name, entry in self.entries.items() if entry.engine is None}
        assert set(self._suspects) <= set(self.entries)
        for client in self.users:
            owed = sum(entry.receivers.count(client) for entry in self.entries.values())
            assert self._credits.outstanding(client) == owed, "a client's credit is not what it waits for"
        for entry in self.entries.values():
            assert set(entry.receivers) <= self.users, "a receiver is gone"
            assert entry.receivers or entry.cancelled or entry.orphaned is not None, "nobody waits, nobody ends it"

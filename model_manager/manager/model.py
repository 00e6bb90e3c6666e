"""One model in the manager: its requests, who waits for each, what becomes of them when its engine or a client dies.

A state machine without IO or clock: each event brings the time, all that is decided goes to the outbox. Every
request of a client that has the model open is answered exactly once, unless the model as a whole is given up.

    idle ──open, submit──► loading ──ready──► ready ──death──► restarting ──ready──► ready ──nothing to do──► idle
                              └──cannot load──► failed ◄──too many deaths──┘
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from heapq import nsmallest

import msgspec

from model_manager.manager.credits import Credits
from model_manager.manager.jobs import JobCounts
from model_manager.manager.outbox import Outbox, Start, Stop, ToEngine
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
from model_manager.wire.logprobs import Logprobs
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
    Timings,
)
from model_manager.wire.messages import (
    Credits as CreditsMessage,
)


class State(enum.StrEnum):
    """Where a model stands."""

    IDLE = "idle"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass
class Entry:
    """A request that is not finished."""

    request: Request
    arrived: float
    receivers: list[int] = field(default_factory=list)
    """Clients, each as often as it has sent the request; empty: an orphan, or being cancelled."""
    tokens: list[int] = field(default_factory=list)
    """Generated so far, by any engine."""
    logprobs: list[Logprobs] = field(default_factory=list)
    """Theirs, where they are asked for."""
    sent: bool = False
    """The engine has it."""
    progressed: bool = False
    """This engine has generated tokens for it."""
    cancelled: bool = False
    """The engine was told to end it."""
    deaths: int = 0
    """Deaths of its engine in a row at which it was there and had come no further."""
    orphaned: float | None = None
    """When its last receiver died."""


class Model:
    """The state machine of one model."""

    def __init__(
        self,
        config: ModelConfig,
        folder: str,
        *,
        settings: ManagerConfig,
        outbox: Outbox,
        kept: KeptResults,
        jobs: JobCounts,
    ) -> None:
        self.key = config.key
        self.config = config
        self.folder = folder
        self.state = State.IDLE
        self.users: set[int] = set()
        self.entries: dict[str, Entry] = {}
        self._settings = settings
        self._outbox = outbox
        self._kept = kept
        self._jobs = jobs
        self._credits = Credits()
        self._waiting: set[int] = set()
        self._given_up: set[int] = set()
        self._unsent: dict[str, Entry] = {}
        self._in_engine = 0
        self._suspects: dict[str, Entry] = {}
        self._info: ModelInfo | None = None
        self._stats = EngineStats()
        self._restarts = 0
        self._deaths_in_row = 0
        self._killers_in_row = 0
        self._last_used = -math.inf
        self._unused_since = -math.inf
        self._error: ErrorInfo | None = None

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
            self._start()

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
        if entry is not None and not _same(entry.request, request):
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
            self._start()

    def cancel(self, client: int, request_id: str, now: float) -> None:
        """A user wants a request no more: it is answered at once; others that wait for the same still get theirs."""
        entry = self.entries.get(request_id)
        if entry is None or client not in entry.receivers:
            return  # answered already, and the answer is on its way
        entry.receivers.remove(client)
        self._answer(client, _cut_short(entry, FinishReason.ABORT, now), now)
        if not entry.receivers:
            self._abandon(entry)

    def _abandon(self, entry: Entry) -> None:
        """Nobody waits for it: forget it, or have the engine end it; until it has, a retry finds it here."""
        entry.orphaned = None
        if not entry.sent:
            self._forget(entry)
        elif not entry.cancelled:
            entry.cancelled = True
            self._outbox.add(ToEngine(self.key, Cancel(self.key, [entry.request.request_id])))

    def _forget(self, entry: Entry) -> None:
        request_id = entry.request.request_id
        del self.entries[request_id]
        self._unsent.pop(request_id, None)
        self._suspects.pop(request_id, None)
        self._in_engine -= entry.sent

    def _answer(self, client: int, answer: Output | Failure, now: float) -> None:
        self._credits.give_back(client, now)
        self._outbox.answer(client, self.key, answer)

    # ── the engine ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self.state = State.LOADING
        self._deaths_in_row = self._killers_in_row = 0
        self._error = None
        self._outbox.add(Start(self.key, self.config, self.folder))

    def _stop(self, state: State) -> None:
        if self.state in (State.LOADING, State.READY, State.RESTARTING):
            self._outbox.add(Stop(self.key))
        self.state = state
        self._stats = EngineStats()

    def ready(self, info: ModelInfo, now: float) -> None:
        """The engine has loaded the model."""
        self.state = State.READY
        self._info = info
        self._last_used = now
        self._credits.set_capacity(self._capacity())
        self._welcome()

    def _welcome(self) -> None:
        assert self._info is not None, "ready without a description"
        for client in self._waiting:
            self._outbox.to_client(client, ModelReady(self.key, self._info))
        self._waiting.clear()

    def _capacity(self) -> int:
        assert self._info is not None, "capacity asked for before the model was loaded"
        return math.ceil(self._info.max_num_seqs * (1 + self._settings.lookahead))

    def report(self, report: StepReport, now: float) -> None:
        """What a step of the engine brought about."""
        for request_id, tokens in report.progress.items():
            if (entry := self.entries.get(request_id)) is not None:
                entry.tokens.extend(tokens)
                entry.progressed = True
                if request_id in report.logprobs:
                    entry.logprobs.append(report.logprobs[request_id])
        for output in report.outputs:
            self._finished(output, now)
        for failure in report.failures:
            self._failed(failure, now)
        if report.failures or any(output.finish_reason is not FinishReason.ABORT for output in report.outputs):
            self._deaths_in_row = self._killers_in_row = 0
        self._last_used = now
        self._stats = report.stats or self._stats

    def _finished(self, output: Output, now: float) -> None:
        entry = self.entries.get(output.request_id)
        if entry is None or not entry.sent:
            return
        if output.finish_reason is FinishReason.ABORT and entry.receivers:
            self._resume(entry)  # a retry came for it after it was cancelled
            return
        self._conclude(entry, output, now)

    def _conclude(self, entry: Entry, output: Output, now: float) -> None:
        self._forget(entry)
        if output.finish_reason is not FinishReason.ABORT:
            self._kept.add(self.key, entry.request, output, now)
            self._jobs.finished(entry.request.job, output, first=_is_first(entry.request))
        for client in entry.receivers:
            self._answer(client, output, now)

    def _resume(self, entry: Entry) -> None:
        self._in_engine -= entry.sent
        entry.sent = entry.cancelled = entry.progressed = False
        self._unsent[entry.request.request_id] = entry

    def _failed(self, failure: Failure, now: float) -> None:
        entry = self.entries.get(failure.request_id)
        if entry is None:
            return
        self._forget(entry)
        if _is_first(entry.request):
            self._jobs.failed(entry.request.job)
        for client in entry.receivers:
            self._answer(client, failure, now)

    def died(self, reason: str, *, hopeless: bool, now: float) -> None:
        """The engine ended; `hopeless` if another one would while loading. Its requests go to the next one."""
        self._stats = EngineStats()
        if hopeless and self.state is State.LOADING:
            self.fail(ModelLoadFailed(f"{self.config.model}: {reason}").info(), engine_runs=False)
            return
        self._restarts += 1
        self._deaths_in_row += 1
        self._take_back(reason, now)
        if max(self._deaths_in_row, self._killers_in_row) > self._settings.max_restarts:
            lost = f"{self.config.model}: its inference process died {self._deaths_in_row} times in a row: {reason}"
            self.fail(EngineLost(lost).info(), engine_runs=False)
        else:
            self.state = State.LOADING if self.state is State.LOADING else State.RESTARTING
            self._outbox.add(Start(self.key, self.config, self.folder))

    def _take_back(self, reason: str, now: float) -> None:
        for entry in [entry for entry in self.entries.values() if entry.sent]:
            # Coming further on this engine than on the last is an alibi: what kills engines is stuck where it kills.
            entry.deaths = 1 if entry.progressed else entry.deaths + 1
            self._resume(entry)
            if not entry.receivers and entry.orphaned is None:
                self._forget(entry)
            elif entry.deaths > self._settings.max_deaths_per_request:
                self._fail_killer(entry, reason, now)
            elif entry.deaths >= max(1, self._settings.max_deaths_per_request):
                self._suspects[entry.request.request_id] = entry
        self._unsent = {name: entry for name, entry in self.entries.items() if not entry.sent}

    def _fail_killer(self, entry: Entry, reason: str, now: float) -> None:
        error = EngineKiller(f"the inference process died {entry.deaths} times while it ran this request: {reason}")
        self._failed(Failure(entry.request.request_id, error.info()), now)
        self._deaths_in_row = 0
        self._killers_in_row += 1

    def fail(self, error: ErrorInfo, *, engine_runs: bool) -> None:
        """Give the model up: every user is told so, which is the answer to all that they wait for."""
        if engine_runs:
            self._stop(State.FAILED)
        self.state = State.FAILED
        self._error = error
        for client in self.users:
            self._outbox.to_client(client, ModelFailed(self.key, error))
        self._given_up |= self.users
        self.users, self._waiting, self._credits = set(), set(), Credits()
        self.entries, self._unsent, self._suspects, self._in_engine = {}, {}, {}, 0

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """Cancel orphans whose time is up, end what is overdue; end the engine when nobody needs it."""
        for entry in [entry for entry in self.entries.values() if entry.orphaned is not None]:
            if now - (entry.orphaned or 0.0) >= self._settings.orphan_grace:
                self._abandon(entry)
        for entry in [entry for entry in self._unsent.values() if _is_overdue(entry, now)]:
            self._end_overdue(entry, now)
        if not self.entries and self._is_unneeded(now):
            self._stop(State.FAILED if self.state is State.FAILED else State.IDLE)
        if self._info is not None and self.state is not State.FAILED:
            self._share_credits(now)

    def _end_overdue(self, entry: Entry, now: float) -> None:
        """What an engine has it ends itself; this waits for one, perhaps for one that is to go on with it."""
        if entry.tokens:
            self._conclude(entry, _cut_short(entry, FinishReason.DEADLINE, now), now)
        else:
            late = DeadlineExceeded(f"no token after deadline={entry.request.params.deadline} seconds")
            self._failed(Failure(entry.request.request_id, late.info()), now)

    def _is_unneeded(self, now: float) -> bool:
        if self.users:
            return self.state is State.READY and now - self._last_used >= self._settings.idle_timeout
        return now - self._unused_since >= self._settings.linger

    @property
    def is_needed(self) -> bool:
        """Whether anyone uses it, or an engine of it runs."""
        return bool(self.users or self.entries) or self.state in (State.LOADING, State.READY, State.RESTARTING)

    def pump(self, now: float) -> None:
        """Hand over what the engine has room for, and new limits where they should not wait."""
        if self._credits.due and self.state is State.READY:
            self._share_credits(now)
        batch = self._sendable() if self.state is State.READY and self._unsent else []
        for entry in batch:
            del self._unsent[entry.request.request_id]
            entry.sent = True
        self._in_engine += len(batch)
        for requests in request_batches(_as_sent(entry, now) for entry in batch):
            self._outbox.add(ToEngine(self.key, Submit(self.key, requests)))

    def _share_credits(self, now: float) -> None:
        for client, limit in self._credits.divide(now).items():
            self._outbox.to_client(client, CreditsMessage(self.key, limit))

    def _sendable(self) -> list[Entry]:
        """Suspects run alone, one after the other; after a death nothing is sent that could not run at once."""
        assert self._info is not None, "ready without a description"
        if self._suspects:
            return [] if self._in_engine else [next(iter(self._suspects.values()))]
        room = (self._info.max_num_seqs if self._deaths_in_row else self._capacity()) - self._in_engine
        return nsmallest(room, self._unsent.values(), key=lambda entry: entry.request.params.priority)

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, pid: int | None) -> ModelStatus:
        """A snapshot; `pid` of the engine."""
        stats = self._stats
        if not self.entries:
            stats = msgspec.structs.replace(stats, running=0, waiting=0, tokens_per_s=0.0)
        waiting = stats.waiting + len(self._unsent)
        return ModelStatus(
            key=self.key,
            model=self.config.model,
            state=self.state.value,
            pid=pid,
            clients=len(self.users),
            restarts=self._restarts,
            outstanding=len(self.entries),
            info=self._info,
            stats=msgspec.structs.replace(stats, waiting=waiting),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if the parts contradict each other (tests)."""
        sent = [entry for entry in self.entries.values() if entry.sent]
        assert len(sent) == self._in_engine, "the count of what the engine has is wrong"
        assert set(self._unsent) == {name for name, entry in self.entries.items() if not entry.sent}
        assert set(self._suspects) <= set(self.entries)
        for client in self.users:
            owed = sum(entry.receivers.count(client) for entry in self.entries.values())
            assert self._credits.outstanding(client) == owed, "a client's credit is not what it waits for"
        for entry in self.entries.values():
            assert set(entry.receivers) <= self.users, "a receiver is gone"
            assert entry.receivers or entry.cancelled or entry.orphaned is not None, "nobody waits, nobody ends it"


def _same(one: Request, other: Request) -> bool:
    return one.prompt_token_ids == other.prompt_token_ids and one.params == other.params


def _as_sent(entry: Entry, now: float) -> Request:
    return msgspec.structs.replace(
        entry.request,
        output_token_ids=list(entry.tokens),
        output_logprobs=Logprobs.join(entry.logprobs) if entry.logprobs else None,
        waited=now - entry.arrived,
    )


def _is_first(request: Request) -> bool:
    """Whether it is a prompt's only answer, or the first of several."""
    return request.family in ("", request.request_id)


def _is_overdue(entry: Entry, now: float) -> bool:
    deadline = entry.request.params.deadline
    return deadline is not None and now - entry.arrived >= deadline


def _cut_short(entry: Entry, reason: FinishReason, now: float) -> Output:
    waited = now - entry.arrived
    return Output(
        request_id=entry.request.request_id,
        token_ids=list(entry.tokens),
        finish_reason=reason,
        timings=Timings(queued=waited, first_token=waited, finished=waited),
        prompt_tokens=len(entry.request.prompt_token_ids),
    )

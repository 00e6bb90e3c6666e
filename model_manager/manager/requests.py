"""The requests of one model: which clients wait for each, which engine has it, what happens when that engine dies.

Every request of a client that stays connected is answered exactly once, unless the whole model is given up. A state
machine without IO or clock. Does not decide which engines run.

A request that was running at several deaths of engines in a row, without progress, is suspected of killing them: it is
a suspect. Suspects run alone, so that the next death shows whether a suspect is the killer.
"""

from __future__ import annotations

from collections.abc import Collection

from ..wire.batching import progress_batches, request_batches
from ..wire.config import ManagerConfig
from ..wire.engine_messages import StepReport
from ..wire.errors import DeadlineExceeded, EngineKiller, InvalidRequest, counted
from ..wire.job_progress import spans
from ..wire.messages import Cancel, Credits, Progress, Submit
from ..wire.request import Failure, FinishReason, NewTokens, Output, Request
from .counts import ModelCounts
from .credits import CreditAccounts
from .engine_pool import EnginePool, EngineSlot
from .entry import Entry
from .fair_shares import FairShares
from .jobs import JobCounts
from .outbox import Outbox, ToEngine
from .results import KeptResults


class Requests:
    """The model's unfinished requests, its finished ones that are kept for a retry, and its clients' credits."""

    def __init__(
        self,
        key: str,
        engines: EnginePool,
        settings: ManagerConfig,
        outbox: Outbox,
        kept: KeptResults,
        jobs: JobCounts,
        counts: ModelCounts,
    ) -> None:
        self.entries: dict[str, Entry] = {}
        self.credits = CreditAccounts()
        self.shares = FairShares()
        self._unsent: dict[str, Entry] = {}
        """Requests that no engine has, in the order in which engines get them (see `EnginePool.assign`)."""
        self._suspects: dict[str, Entry] = {}
        """Requests suspected of killing engines, running or not."""
        self._progressed: dict[str, Entry] = {}
        """Requests that may have tokens that a stream has not been sent yet."""
        self.last_call: float | None = None
        """Requests that arrived later are not handed over; None if all are."""
        self._key = key
        self._engines = engines
        self._settings = settings
        self._outbox = outbox
        self._kept = kept
        self._jobs = jobs
        self._counts = counts

    @property
    def num_unsent(self) -> int:
        """Requests that no engine has."""
        return len(self._unsent)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, client: int, request: Request, now: float, weight: float = 1.0) -> None:
        """Take in a request: answer it from the kept results, attach it to the same request that runs, or queue it.

        `weight`: its job's.
        """
        self.credits.take(client, now, request.job)
        kept = self._kept.find(self._key, request)
        entry = self.entries.get(request.request_id)
        if entry is not None and not entry.is_same_work(request):
            error = InvalidRequest(f"request_id {request.request_id!r} is taken by another prompt or parameters")
            self._answer(client, Failure(request.request_id, error.info()), now)
        elif entry is not None:
            entry.attach(client, request)
            self._progressed[request.request_id] = entry
        elif kept is not None:
            self._answer(client, kept, now)
        else:
            self._accept(client, request, now, weight)

    def _accept(self, client: int, request: Request, now: float, weight: float) -> None:
        self.shares.add(request.job, weight)
        self.entries[request.request_id] = self._unsent[request.request_id] = Entry.of(request, client, now)

    def cancel(self, client: int, request_id: str, now: float) -> None:
        """A client cancels a request: it is answered at once. Other clients that wait for the same request still get
        the output.
        """
        entry = self.entries.get(request_id)
        if entry is None or client not in entry.receivers:
            return  # answered already, and the answer is on its way
        entry.detach(client)
        self._answer(client, entry.cut_short(FinishReason.ABORT, now), now)
        if not entry.receivers:
            self._abandon(entry)

    def leave(self, client: int, until: float | None = None) -> set[str]:
        """A client is gone. Requests that only this client waited for end; `until`: it died, and they are orphans until
        then. Returns the jobs of orphans.
        """
        self.credits.leave(client)
        left = [entry for entry in self.entries.values() if client in entry.receivers]
        for entry in left:
            entry.forsake(client)
            if not entry.receivers and until is not None:
                entry.orphaned_until = until
            elif not entry.receivers:
                self._abandon(entry)
        return {entry.request.job for entry in left if entry.orphaned_until is not None}

    def computed_for(self, client: int) -> dict[str, int]:
        """Tokens that engines have computed for a client's running requests."""
        running = (entry for slot in self._engines.slots for entry in slot.entries.values())
        counts = {each.request.request_id: each.computed_tokens for each in running if client in each.receivers}
        return {request_id: count for request_id, count in counts.items() if count}

    def _abandon(self, entry: Entry) -> None:
        """No client waits for the request: forget it, or tell its engine to end it. Until the engine has ended it, a
        retry can still attach to it.
        """
        entry.orphaned_until = None
        if entry.engine is None:
            self._forget(entry)
        elif not entry.cancelled:
            entry.cancelled = True
            self._outbox.add(ToEngine(self._key, Cancel(self._key, [entry.request.request_id]), entry.engine))

    def _forget(self, entry: Entry, generated: int | None = None) -> None:
        """The request is over, with so many tokens if its engine has ended it."""
        request_id = entry.request.request_id
        del self.entries[request_id]
        self._unsent.pop(request_id, None)
        self._suspects.pop(request_id, None)
        self._progressed.pop(request_id, None)
        if entry.engine is None:
            self.shares.drop(entry.request.job)
        else:
            unused = entry.work if generated is None else entry.request.params.max_tokens - generated
            self._leave_engine(entry)
            self.shares.finish(entry.request.job, unused)

    def _leave_engine(self, entry: Entry) -> None:
        assert entry.engine is not None, "no engine has it"
        self._engines.slots[entry.engine].remove(entry)
        entry.take_back()

    def _answer(self, client: int, answer: Output | Failure, now: float) -> None:
        self.credits.give_back(client, now)
        self._outbox.answer(client, self._key, answer)

    # ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def hand_over(self, now: float) -> None:
        """Send the engines as many requests as they have room for."""
        for slot, entries in self._engines.assign(self._line(), self._suspects) if self._unsent else ():
            for entry in entries:
                del self._unsent[entry.request.request_id]
                self.shares.hand_over(entry.request.job, entry.work)
            for requests in request_batches(entry.as_sent(now) for entry in entries):
                self._outbox.add(ToEngine(self._key, Submit(self._key, requests), slot.index))

    def _line(self) -> dict[str, Entry]:
        """The requests that are due; in fair turn, if it matters because there is room."""
        if not self._engines.has_room:
            return self._due
        return {entry.request.request_id: entry for entry in self.shares.in_turn(self._due.values())}

    @property
    def _due(self) -> dict[str, Entry]:
        if self.last_call is None:
            return self._unsent
        return {name: entry for name, entry in self._unsent.items() if entry.arrived <= self.last_call}

    @property
    def has_work(self) -> bool:
        """Whether engines have requests, or are still to get some."""
        return bool(self._due) or any(slot.entries for slot in self._engines.slots)

    def report(self, slot: EngineSlot, report: StepReport, now: float) -> None:
        """An engine reports one step: note the tokens, answer what ended."""
        for request_id, tokens in report.progress.items():
            if (entry := slot.entries.get(request_id)) is not None:
                entry.progress(tokens, report.logprobs.get(request_id), report.texts.get(request_id))
                if entry.streams:
                    self._progressed[request_id] = entry
        for output in report.outputs:
            if (entry := slot.entries.get(output.request_id)) is not None:
                self._finished(entry, output, now)
        for failure in report.failures:
            if (entry := slot.entries.get(failure.request_id)) is not None:
                self._fail(entry, failure, now)

    def send_progress(self) -> None:
        """Send the tokens since the last call to the clients that want them as they are generated."""
        fresh: dict[int, list[NewTokens]] = {}
        for entry in self._progressed.values():
            for client, tokens in entry.unsent_tokens():
                fresh.setdefault(client, []).append(tokens)
        self._progressed.clear()
        for client, of_client in fresh.items():
            for batch in progress_batches(of_client):
                self._outbox.to_client(client, Progress(self._key, batch))

    def send_to_keep(self, client: int) -> None:
        """Send a client the new tokens of its running requests that it does not stream: if this manager dies, it asks
        the next one for the rest.
        """
        running = [entry for slot in self._engines.slots for entry in slot.entries.values()]
        fresh = [tokens for entry in running if (tokens := entry.unkept_tokens(client)) is not None]
        for batch in progress_batches(fresh):
            self._outbox.to_client(client, Progress(self._key, batch))

    def _finished(self, entry: Entry, output: Output, now: float) -> None:
        if output.finish_reason is FinishReason.ABORT and entry.receivers:
            self._resume(entry)  # a retry came for it after it was cancelled
        else:
            self._conclude(entry, output, now)

    def _conclude(self, entry: Entry, output: Output, now: float) -> None:
        was_given_up = entry.cancelled and not entry.receivers
        self._forget(entry, output.num_generated)
        output = entry.told(output)
        if output.finish_reason is not FinishReason.ABORT:
            self._kept.add(self._key, entry.request, output, now)
            self._jobs.finished(entry.request, output)
            if not was_given_up:
                self._count(entry, output, now)
        for client in entry.receivers:
            self._answer(client, output, now)

    def _count(self, entry: Entry, output: Output, now: float) -> None:
        counter = self._counts.answered["server_answers" if entry.request.served else "job"]
        generated = output.num_generated
        queued, prefill, decode = spans(output.timings, generated)
        in_one_go = generated > 0 and not output.setbacks  # else its last engine alone measured its times
        counter.request(now - entry.arrived, queued + prefill if in_one_go else None, output.prompt_tokens, generated)
        counter.answer(output.finish_reason, queued, prefill, decode, generated - 1 if in_one_go else 0)

    def _resume(self, entry: Entry) -> None:
        self.shares.take_back(entry.request.job, entry.work)
        self._leave_engine(entry)
        self._unsent[entry.request.request_id] = entry

    def _fail(self, entry: Entry, failure: Failure, now: float) -> None:
        self._forget(entry, len(entry.tokens))
        if entry.request.is_first:
            self._jobs.failed(entry.request.job, failure.error.kind)
        for client in entry.receivers:
            self._answer(client, entry.told(failure), now)

    def take_back(self, slot: EngineSlot, reason: str, now: float, *, died: bool = True) -> None:
        """An engine died, for `reason`, or can do no more: its requests are queued again, before those not sent yet."""
        waiting, self._unsent = self._unsent, {}
        for entry in list(slot.entries.values()):
            if died:
                # A request that kills engines kills each at the same token. This engine got further than the one
                # before, so the request is not to blame for the earlier death.
                entry.deaths = 1 if entry.progressed else entry.deaths + 1
            entry.engine_died(now)
            self._resume(entry)
            if not entry.receivers and entry.orphaned_until is None:
                self._forget(entry)
            elif entry.deaths > self._settings.max_deaths_per_request:
                self._fail_killer(slot, entry, reason, now)
            elif entry.deaths >= max(1, self._settings.max_deaths_per_request):
                self._suspects[entry.request.request_id] = entry
        self._unsent |= waiting

    def _fail_killer(self, slot: EngineSlot, entry: Entry, reason: str, now: float) -> None:
        times = counted(entry.deaths, "time")
        error = EngineKiller(f"the inference process died {times} while it ran this request: {reason}")
        self._fail(entry, entry.failure(error), now)
        slot.deaths_in_row = 0
        slot.killers_in_row += 1

    def drop_all(self) -> None:
        """Forget all requests: the model is given up, and clients learn that from ModelFailed."""
        self.entries, self._unsent, self._suspects, self._progressed = {}, {}, {}, {}
        self.credits, self.shares = CreditAccounts(), FairShares()
        for slot in self._engines.slots:
            slot.clear()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """Cancel orphans whose grace time is over; end queued requests whose deadline has passed."""
        for entry in list(self.entries.values()):
            if entry.orphaned_until is not None and now >= entry.orphaned_until:
                self._abandon(entry)
        for entry in [entry for entry in self._unsent.values() if entry.is_overdue(now)]:
            self._end_overdue(entry, now)

    def _end_overdue(self, entry: Entry, now: float) -> None:
        """End a queued request whose deadline has passed. It may have tokens from an engine that died.

        Requests that an engine has are ended by that engine.
        """
        constrained = entry.request.params.constraint is not None
        if entry.tokens and not constrained:
            self._conclude(entry, entry.cut_short(FinishReason.DEADLINE, now), now)
        else:
            missing = "complete output" if constrained else "token"
            late = DeadlineExceeded(f"no {missing} after deadline={entry.request.params.deadline} seconds")
            self._fail(entry, entry.failure(late), now)

    def share_credits(self, now: float) -> None:
        """Tell clients their new limits."""
        for client, limit in self.credits.divide(now).items():
            self._outbox.to_client(client, Credits(self._key, limit))

    # ── tests ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_integrity(self, users: Collection[int]) -> None:
        """Raise AssertionError if the parts contradict each other."""
        for slot in self._engines.slots:
            slot.check_integrity()
            sent = {name for name, entry in self.entries.items() if entry.engine == slot.index}
            assert sent == set(slot.entries), "the account of what an engine has is wrong"
        assert set(self._unsent) == {name for name, entry in self.entries.items() if entry.engine is None}
        assert set(self._suspects) <= set(self.entries)
        self.shares.check_integrity(self.entries.values())
        for client in users:
            owed = sum(entry.receivers.count(client) for entry in self.entries.values())
            assert self.credits.outstanding(client) == owed, "a client's credit is not what it waits for"
        for entry in self.entries.values():
            assert set(entry.receivers) <= set(users), "a receiver is gone"
            assert set(entry.streams) <= set(entry.receivers), "a stream has no receiver"
            assert set(entry.keepers) <= set(entry.receivers), "tokens are kept for nobody"
            assert entry.receivers or entry.cancelled or entry.orphaned_until is not None, (
                "nobody waits, nobody ends it"
            )
            assert not entry.receivers or entry.orphaned_until is None, "somebody waits for an orphan"

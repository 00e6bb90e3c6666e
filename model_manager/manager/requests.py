"""The requests of one model: who waits for each, which engine has it, what becomes of it when that engine dies.

Every request of a client that stays is answered exactly once, unless the model as a whole is given up. A state machine
without IO or clock, as the model that it is a part of. Does not decide which engines run.
"""

from __future__ import annotations

from collections.abc import Collection

from ..wire.batching import request_batches
from ..wire.config import ManagerConfig
from ..wire.errors import DeadlineExceeded, EngineKiller, InvalidRequest
from ..wire.messages import Cancel, Failure, FinishReason, Output, Request, StepReport, Submit
from ..wire.messages import Credits as CreditsMessage
from .credits import Credits
from .engine_pool import EnginePool, Slot
from .entry import Entry
from .jobs import JobCounts
from .outbox import Outbox, ToEngine
from .results import KeptResults


class Requests:
    """Those that are accepted and not finished, those that are kept for a retry, and the clients' credits."""

    def __init__(
        self, key: str, engines: EnginePool, settings: ManagerConfig, outbox: Outbox, kept: KeptResults, jobs: JobCounts
    ) -> None:
        self.entries: dict[str, Entry] = {}
        self.credits = Credits()
        self._unsent: dict[str, Entry] = {}
        self._suspects: dict[str, Entry] = {}
        self._key = key
        self._engines = engines
        self._settings = settings
        self._outbox = outbox
        self._kept = kept
        self._jobs = jobs

    @property
    def num_unsent(self) -> int:
        """Requests that no engine has."""
        return len(self._unsent)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, client: int, request: Request, now: float) -> None:
        """One more: answered from what is kept, attached to what runs, or to be given to an engine."""
        self.credits.take(client, now)
        kept = self._kept.find(self._key, request)
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

    def cancel(self, client: int, request_id: str, now: float) -> None:
        """A client wants one no more: it is answered at once; others that wait for the same still get theirs."""
        entry = self.entries.get(request_id)
        if entry is None or client not in entry.receivers:
            return  # answered already, and the answer is on its way
        entry.receivers.remove(client)
        self._answer(client, entry.cut_short(FinishReason.ABORT, now), now)
        if not entry.receivers:
            self._abandon(entry)

    def leave(self, client: int, *, died: bool, now: float) -> None:
        """A client is gone: requests that only it waited for are orphans if it died, else they are cancelled."""
        self.credits.leave(client)
        for entry in [entry for entry in self.entries.values() if client in entry.receivers]:
            entry.receivers = [receiver for receiver in entry.receivers if receiver != client]
            if not entry.receivers and died:
                entry.orphaned = now
            elif not entry.receivers:
                self._abandon(entry)

    def _abandon(self, entry: Entry) -> None:
        """Nobody waits for it: forget it, or have the engine end it; until it has, a retry finds it here."""
        entry.orphaned = None
        if entry.engine is None:
            self._forget(entry)
        elif not entry.cancelled:
            entry.cancelled = True
            self._outbox.add(ToEngine(self._key, Cancel(self._key, [entry.request.request_id]), entry.engine))

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
        self.credits.give_back(client, now)
        self._outbox.answer(client, self._key, answer)

    # ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def hand_over(self, now: float) -> None:
        """Give the engines what they have room for."""
        for slot, entries in self._engines.assign(self._unsent, self._suspects) if self._unsent else ():
            for entry in entries:
                del self._unsent[entry.request.request_id]
            for requests in request_batches(entry.as_sent(now) for entry in entries):
                self._outbox.add(ToEngine(self._key, Submit(self._key, requests), slot.index))

    def report(self, slot: Slot, report: StepReport, now: float) -> None:
        """What a step of an engine brought about."""
        for request_id, tokens in report.progress.items():
            if (entry := slot.entries.get(request_id)) is not None:
                entry.progress(tokens, report.logprobs.get(request_id))
        for output in report.outputs:
            if (entry := slot.entries.get(output.request_id)) is not None:
                self._finished(entry, output, now)
        for failure in report.failures:
            if (entry := slot.entries.get(failure.request_id)) is not None:
                self._fail(entry, failure, now)

    def _finished(self, entry: Entry, output: Output, now: float) -> None:
        if output.finish_reason is FinishReason.ABORT and entry.receivers:
            self._resume(entry)  # a retry came for it after it was cancelled
        else:
            self._conclude(entry, output, now)

    def _conclude(self, entry: Entry, output: Output, now: float) -> None:
        self._forget(entry)
        if output.finish_reason is not FinishReason.ABORT:
            self._kept.add(self._key, entry.request, output, now)
            self._jobs.finished(entry.request.job, output, first=entry.is_first)
        for client in entry.receivers:
            self._answer(client, output, now)

    def _resume(self, entry: Entry) -> None:
        self._leave_engine(entry)
        self._unsent[entry.request.request_id] = entry

    def _fail(self, entry: Entry, failure: Failure, now: float) -> None:
        self._forget(entry)
        if entry.is_first:
            self._jobs.failed(entry.request.job)
        for client in entry.receivers:
            self._answer(client, failure, now)

    def take_back(self, slot: Slot, reason: str, now: float) -> None:
        """An engine died for that reason: what it had comes before what has not been sent yet."""
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
        self._fail(entry, entry.failure(error), now)
        slot.deaths_in_row = 0
        slot.killers_in_row += 1

    def drop_all(self) -> None:
        """The model is given up, which is the answer to all."""
        self.entries, self._unsent, self._suspects = {}, {}, {}
        self.credits = Credits()
        for slot in self._engines.slots:
            slot.clear()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """Cancel orphans whose time is up, end what is overdue."""
        for entry in list(self.entries.values()):
            if entry.orphaned is not None and now - entry.orphaned >= self._settings.orphan_grace:
                self._abandon(entry)
        for entry in [entry for entry in self._unsent.values() if entry.is_overdue(now)]:
            self._end_overdue(entry, now)

    def _end_overdue(self, entry: Entry, now: float) -> None:
        """What an engine has it ends itself; this waits for one, perhaps for one that is to go on with it."""
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
            self._outbox.to_client(client, CreditsMessage(self._key, limit))

    # ── tests ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_integrity(self, users: Collection[int]) -> None:
        """Raise AssertionError if the parts contradict each other."""
        for slot in self._engines.slots:
            slot.check_integrity()
            sent = {name for name, entry in self.entries.items() if entry.engine == slot.index}
            assert sent == set(slot.entries), "the account of what an engine has is wrong"
        assert set(self._unsent) == {name for name, entry in self.entries.items() if entry.engine is None}
        assert set(self._suspects) <= set(self.entries)
        for client in users:
            owed = sum(entry.receivers.count(client) for entry in self.entries.values())
            assert self.credits.outstanding(client) == owed, "a client's credit is not what it waits for"
        for entry in self.entries.values():
            assert set(entry.receivers) <= set(users), "a receiver is gone"
            assert entry.receivers or entry.cancelled or entry.orphaned is not None, "nobody waits, nobody ends it"

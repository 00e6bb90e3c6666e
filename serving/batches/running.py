"""One batch, from wherever it is to its end. Every step may be broken off by kill -9 and done again by another server.

validating ─► rows written ─► (a slot is free) in_progress ─► every row answered ─► finalizing ─► completed
     └─► failed                        └─► cancelling, or the window is over: the same end, with what is done
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from ..files.store import Files
from ..service import Service
from .asking import COMMANDS, Desk
from .finishing import Finished, Finishing
from .job import last_words, started
from .progress import Progress
from .record import Batch, Counts, Problem, Status
from .store import Batches
from .validation import NotValid, validate

_LOOK_SECONDS = 0.5
_TRIES = 3
"""Jobs in a row that end early and answer nothing, after which a batch fails."""
_PAUSE = 1.0
"""Seconds before a job is started again."""
_log = logging.getLogger(__name__)


class BatchRun:
    """Runs a batch, if no other server does."""

    def __init__(self, owner: Path, batch: Batch, service: Service, gates: Gates) -> None:
        """`owner`: the folder of whose batch it is."""
        self._batch = batch
        self._folder = Batches(owner).folder(batch.id)
        self._files = Files(owner)
        self._service = service
        self._gates = gates
        self._ending = asyncio.Event()

    def end(self, outcome: Status) -> None:
        """End it early, as cancelled or expired; what is answered is delivered. The first call decides."""
        if not self._ending.is_set() and self._batch.status != "finalizing":
            self._batch = self._batch.now(self._batch.status, _now(), outcome=outcome)
            self._ending.set()

    async def run(self) -> None:
        """Go on with it; cancelled, it stays where it is."""
        with self._folder.held() as is_ours:
            batch = await asyncio.to_thread(self._folder.read) if is_ours else None
            if batch is None or batch.has_ended:
                return
            self._batch = (
                msgspec.structs.replace(batch, outcome=self._batch.outcome) if self._ending.is_set() else batch
            )
            window = asyncio.get_running_loop().call_later(batch.expires_at - time.time(), self.end, "expired")
            try:
                await self._go_on()
            except Exception:
                _log.exception("batch %s failed", batch.id)
                told = "the server failed at this batch; its log says why"
                self._save("failed", problems=[Problem(code="internal_error", message=told)])
            finally:
                window.cancel()

    async def _go_on(self) -> None:
        if self._batch.status in ("finalizing", "cancelling"):
            self._ending.set()
        if not self._batch.request_counts.total and not await self._validated():
            return
        async with self._slot() as is_free:
            if is_free:
                await self._work()
        await self._finish()

    # ── its file ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _validated(self) -> bool:
        """Write the rows; returns False for a batch that has failed at that, or was cancelled before."""
        if self._is_ending():
            self._save(self._batch.outcome)
            await asyncio.to_thread(self._folder.clear)
            return False
        desk, most = Desk(self._service), self._service.settings.max_batch_rows
        try:
            async with self._gates.computing:
                total = await asyncio.to_thread(
                    validate, self._batch, self._folder.input, self._folder.rows, desk, most
                )
        except NotValid as error:
            self._save("failed", problems=error.problems)
            await asyncio.to_thread(self._folder.clear)
            return False
        self._save(self._batch.status, request_counts=Counts(total))
        return True

    # ── its job ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[bool]:
        """One of `max_batches`, once it is free; gives False where the batch is to end before that."""
        waiting = asyncio.ensure_future(self._gates.running.acquire())
        try:
            while not waiting.done() and not self._is_ending():
                await asyncio.wait((waiting,), timeout=_LOOK_SECONDS)
            yield waiting.done() and not self._is_ending()
        finally:
            if not waiting.cancel():
                self._gates.running.release()

    async def _work(self) -> None:
        """Have jobs answer the rows until all are answered, or nothing comes of it."""
        self._save("in_progress")
        progress = await asyncio.to_thread(Progress, self._folder, self._batch.request_counts.total)
        await self._count(progress)
        tries = _TRIES
        while not progress.is_done and not self._is_ending():
            before = progress.answered
            await self._follow(progress)
            tries = _TRIES if progress.answered > before else tries - 1
            if not progress.is_done and not tries:
                told = f"the job failed: {last_words(self._folder.log)}"
                self._batch = self._batch.now(
                    "in_progress", _now(), outcome="failed", problems=[Problem(code="job_failed", message=told)]
                )
                return
            if not progress.is_done and not self._is_ending():
                _log.warning("batch %s: its job ended early: %s", self._batch.id, last_words(self._folder.log))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE):
                        await self._ending.wait()

    async def _follow(self, progress: Progress) -> None:
        """Run a job, which goes on from what earlier ones have written, and count its rows meanwhile."""
        command = self._service.served.job(
            COMMANDS[self._batch.endpoint],
            ["--input", str(self._folder.rows), "--output", str(self._folder.answers), "--resume", "--quiet"],
        )
        async with started(command, self._folder.log) as job:
            while not await job.ended(_LOOK_SECONDS) and not self._is_ending():
                await self._count(progress)
        await self._count(progress)

    async def _count(self, progress: Progress) -> None:
        counts = await asyncio.to_thread(progress.look)
        if counts != self._batch.request_counts:
            self._save(self._batch.status, lasting=False, request_counts=counts)

    # ── its end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_ending(self) -> bool:
        """Whether it is to end early; another server may have asked for it."""
        if not self._ending.is_set() and self._folder.is_cancelled:
            self.end("cancelled")
        return self._ending.is_set()

    async def _finish(self) -> None:
        """Write its files under ids that were noted before, so that a second try makes no others."""
        batch = self._batch
        self._save(
            "cancelling" if batch.outcome == "cancelled" else "finalizing",
            output_file_id=batch.output_file_id or self._files.next_id(),
            error_file_id=batch.error_file_id or self._files.next_id(),
        )
        async with self._gates.computing:
            done = await asyncio.to_thread(self._write_files)
        self._save(
            self._batch.outcome,
            output_file_id=self._batch.output_file_id if done.completed else None,
            error_file_id=self._batch.error_file_id if done.has_errors else None,
            request_counts=done.counts,
            usage=done.usage,
        )
        await asyncio.to_thread(self._folder.clear)

    def _write_files(self) -> Finished:
        batch = self._batch
        finishing = Finishing(batch, self._folder, Desk(self._service), batch.outcome)
        with self._files.new(batch.output_file_id) as output, self._files.new(batch.error_file_id) as errors:
            done = finishing.write(output.stream, errors.stream)
            if done.completed:
                output.keep(f"{batch.id}_output.jsonl", "batch_output")
            if done.has_errors:
                errors.keep(f"{batch.id}_error.jsonl", "batch_output")
        return done

    def _save(self, status: Status, *, lasting: bool = True, **changes: object) -> None:
        self._batch = self._batch.now(status, _now(), **changes)
        self._folder.save(self._batch, lasting=lasting)


class Gates:
    """What batches share: places to run, and one thread that computes for long, so that requests have the other."""

    def __init__(self, most: int) -> None:
        self.running = asyncio.Semaphore(most)
        self.computing = asyncio.Semaphore(1)


def _now() -> int:
    return int(time.time())

"""One batch, from wherever it is to its end. Every step may be broken off by kill -9 and done again by another server.

validating ─► rows written ─► (a slot is free) in_progress ─► every row answered ─► finalizing ─► completed
     └─► failed                        └─► cancelling, or the window is over: the same end, with what is done
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..files.file_store import OwnerFiles
from ..requests.service import Service
from .asking import COMMANDS, Desk
from .batch_progress import BatchProgress
from .batch_store import Batches
from .finishing import Finished, Finishing
from .job import last_words, started
from .record import Batch, BatchStatus, Counts, Problem
from .validation import NotValid, validate

_LOOK_SECONDS = 0.5
_TRIES = 3
"""Jobs in a row that end early and answer nothing, after which a batch fails."""
_PAUSE = 1.0
"""Seconds before a job is started again."""
_TRY_AGAIN = 10.0
"""Seconds before the lock of a batch is tried again, or a batch after an error of the disk or the machine."""
_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class BatchRun:
    """Runs a batch, once no other server does."""

    def __init__(self, owner: Path, batch: Batch, service: Service, gates: Gates) -> None:
        """`owner`: the folder of whose batch it is."""
        self._batch = batch
        self._folder = Batches(owner).folder(batch.id)
        self._files = OwnerFiles(owner)
        self._service = service
        self._gates = gates
        self._ending = asyncio.Event()
        self._told = ""
        """The last error that the log was told of."""

    def end(self, outcome: BatchStatus) -> None:
        """End it early, as cancelled or expired; what is answered is delivered. The first call decides."""
        if not self._ending.is_set() and self._batch.status != "finalizing":
            self._batch = self._batch.now(self._batch.status, _now(), outcome=outcome)
            self._ending.set()

    async def run(self) -> None:
        """Go on with it until it has ended; cancelled, it stays where it is.

        Where another server runs it, this one tries again later: that server may end. So it does where the disk is
        full, or the machine out of memory or descriptors.
        """
        while True:
            try:
                if await self._has_ended():
                    return
            except FileNotFoundError:
                return
            except OSError as error:
                self._tell(error)
            await asyncio.sleep(_TRY_AGAIN)

    async def _has_ended(self) -> bool:
        """Run it, if no other server does. Returns False where one does; raises OSError where it may go on later."""
        batch = await _in_thread(self._folder.read)
        if batch is None or batch.has_ended:
            return True
        with self._folder.try_lock() as is_ours:
            if is_ours:
                await self._run_locked()
        return is_ours

    async def _run_locked(self) -> None:
        batch = await _in_thread(self._folder.read)
        if batch is None or batch.has_ended:
            return
        self._batch = msgspec.structs.replace(batch, outcome=self._batch.outcome) if self._ending.is_set() else batch
        window = asyncio.get_running_loop().call_later(batch.expires_at - time.time(), self.end, "expired")
        try:
            await self._go_on()
        except Exception as error:
            if _may_pass(error):
                raise
            _log.exception("batch %s failed", batch.id)
            await self._fail()
        finally:
            window.cancel()

    async def _fail(self) -> None:
        """End it after an error of ours, with the answers that there are, if they can be read."""
        problem = Problem(code="internal_error", message="the server failed at this batch; its log says why")
        self._batch = msgspec.structs.replace(self._batch, outcome="failed", problems=[problem])
        try:
            await self._finish()
        except Exception as error:
            if _may_pass(error):
                raise
            _log.exception("batch %s: its answers cannot be delivered", self._batch.id)
            await self._save("failed", output_file_id=None, error_file_id=None)
            await _in_thread(self._folder.clear)

    def _tell(self, error: OSError) -> None:
        """The log says each error once, however often it comes again."""
        said = error.strerror or str(error)
        if said != self._told:
            _log.warning("batch %s: %s; it is tried again every %g s", self._batch.id, said, _TRY_AGAIN)
        self._told = said

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
            await self._save(self._batch.outcome)
            await _in_thread(self._folder.clear)
            return False
        desk, most = Desk(self._service), self._service.settings.max_batch_rows
        try:
            async with self._gates.computing:
                total = await _in_thread(validate, self._batch, self._folder.input, self._folder.rows, desk, most)
        except NotValid as error:
            await self._save("failed", problems=error.problems)
            await _in_thread(self._folder.clear)
            return False
        await self._save(self._batch.status, request_counts=Counts(total))
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
        await self._save("in_progress")
        progress = await _in_thread(BatchProgress, self._folder, self._batch.request_counts.total)
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

    async def _follow(self, progress: BatchProgress) -> None:
        """Run a job, which goes on from what earlier ones have written, and count its rows meanwhile."""
        name, *flags = COMMANDS[self._batch.endpoint]
        places = ["--input", str(self._folder.rows), "--output", str(self._folder.answers)]
        command = self._service.served.job(name, [*places, *flags, "--resume", "--quiet", "--no-report"])
        async with started(command, self._folder.log) as job:
            while not await job.ended(_LOOK_SECONDS) and not self._is_ending():
                await self._count(progress)
        await self._count(progress)

    async def _count(self, progress: BatchProgress) -> None:
        counts = await _in_thread(progress.look)
        if counts != self._batch.request_counts:
            await self._save(self._batch.status, lasting=False, request_counts=counts)

    # ── its end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_ending(self) -> bool:
        """Whether it is to end early; another server may have asked for it."""
        if not self._ending.is_set() and self._folder.is_cancelled:
            self.end("cancelled")
        return self._ending.is_set()

    async def _finish(self) -> None:
        """Write its files under ids that were noted before, so that a second try makes no others."""
        batch = self._batch
        await self._save(
            "cancelling" if batch.outcome == "cancelled" else "finalizing",
            output_file_id=batch.output_file_id or self._files.next_id(),
            error_file_id=batch.error_file_id or self._files.next_id(),
        )
        async with self._gates.computing:
            done = await _in_thread(self._write_files)
        await self._save(
            self._batch.outcome,
            output_file_id=self._batch.output_file_id if done.completed else None,
            error_file_id=self._batch.error_file_id if done.has_errors else None,
            request_counts=done.counts,
            usage=done.usage,
        )
        await _in_thread(self._folder.clear)

    def _write_files(self) -> Finished:
        batch = self._batch
        finishing = Finishing(batch, self._folder, self._service, batch.outcome)
        with self._files.new(batch.output_file_id) as output, self._files.new(batch.error_file_id) as errors:
            done = finishing.write(output.stream, errors.stream)
            if done.completed:
                output.keep(f"{batch.id}_output.jsonl", "batch_output")
            if done.has_errors:
                errors.keep(f"{batch.id}_error.jsonl", "batch_output")
        return done

    async def _save(self, status: BatchStatus, *, lasting: bool = True, **changes: object) -> None:
        self._batch = self._batch.now(status, _now(), **changes)
        await _in_thread(partial(self._folder.save, self._batch, lasting=lasting))


class Gates:
    """What batches share: places to run, and one thread that computes for long, so that requests have the other."""

    def __init__(self, most: int) -> None:
        self.running = asyncio.Semaphore(most)
        self.computing = asyncio.Semaphore(1)


def _may_pass(error: Exception) -> bool:
    """Whether it comes from the disk or the machine, such as a full disk, so that a later try may go well."""
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


async def _in_thread(work: Callable[..., _Result], *args: Any) -> _Result:
    """What a function gives that reads or writes, on another thread. Cancelled, this waits for the thread before it
    ends: the lock is held for as long as it writes.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


def _now() -> int:
    return int(time.time())

"""All batches that this server runs: those that come, and those that an earlier server left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from millrace.model_manager.wire.errors import MillraceError

from ..files.file_store import OwnerFiles
from ..files.owners import files_folder, owners
from ..requests.service import Service
from .batch_store import Batches
from .record import Batch
from .running import BatchRun, Gates

_log = logging.getLogger(__name__)


class BatchRunner:
    """Made and closed in the event loop. A batch that is closed in the middle goes on with the next server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._gates = Gates(service.settings.max_batches)
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Go on with what earlier servers left, once the model is loaded."""
        self._begin(self._resume())

    def add(self, owner: Path, batch: Batch) -> None:
        """Run a batch, unless this server runs it already."""
        if batch.id not in self._runs:
            run = BatchRun(owner, batch, self._service, self._gates)
            self._runs[batch.id] = run
            self._begin(self._run(batch.id, run))

    def cancel(self, batch_id: str) -> None:
        """End a batch, if this server runs it."""
        if run := self._runs.get(batch_id):
            run.end("cancelled")

    async def close(self) -> None:
        """End all jobs; their batches stay as they are on the disk."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """An error that ends a task is logged. EngineError is not: the server itself ends with it."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or isinstance(error, MillraceError):
            return
        _log.error("batches: %s: %s", type(error).__name__, error, exc_info=error)

    async def _run(self, batch_id: str, run: BatchRun) -> None:
        await self._loaded()
        try:
            await run.run()
        finally:
            del self._runs[batch_id]

    async def _resume(self) -> None:
        await self._loaded()
        for owner, batch in await asyncio.to_thread(self._left):
            _log.warning("batch %s is %s: this server goes on with it", batch.id, batch.status)
            self.add(owner, batch)

    def _left(self) -> list[tuple[Path, Batch]]:
        """Batches of this model that have not ended, the earliest first."""
        folder, served = files_folder(self._service.settings), self._service.served
        found: list[tuple[Path, Batch]] = []
        for owner in (folder / name for name in owners(folder)):
            try:
                OwnerFiles(owner).remove_abandoned()
                found += [(owner, batch) for batch in Batches(owner).open()]
            except OSError as error:
                _log.warning("batches in %s cannot be read: %s", owner, error.strerror or error)
        ours = [each for each in found if (each[1].model, each[1].backend) == (served.model, served.backend)]
        return sorted(ours, key=lambda each: each[1].id)

    async def _loaded(self) -> None:
        """Wait for the model. The shield: whoever opens it is not to find it cancelled."""
        opened = asyncio.wrap_future(self._service.engine.opened)
        opened.add_done_callback(lambda done: done.cancelled() or done.exception())  # told by the server, which ends
        await asyncio.shield(opened)

"""A machine of its own for a test: a runtime folder, a model that costs nothing, and nothing left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.store import resolve
from millrace.model_manager.store.revisions import revision_of
from millrace.model_manager.store.sources import source_of
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import JobStatus, ModelStatus
from tests.runtime_folders import status_of
from tests.waiting import eventually

MANAGER = ("-P", "-m", "tests.model_manager.manager.stand_in_manager")
PATIENCE = 300.0
"""Seconds; far more than anything here takes on an idle machine."""
SETTINGS = ManagerConfig(linger=0.1, heartbeat=0.2, hang_timeout=60.0, orphan_grace=0.5)
HASTY = msgspec.structs.replace(SETTINGS, hang_timeout=2.0)
"""Where somebody is to be taken for hung. On a busy machine others are too: then nobody counts starts."""

_MOST_ATTEMPTS = 20


class Machine:
    """What a test starts and looks at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = folder / "run"
        self.model = folder / "model"
        shutil.copytree(resolve(EMBEDDED_MODEL), self.model)
        (self.model / "starts").touch()
        self._clients: list[EngineClient] = []
        self._workers: list[subprocess.Popen[str]] = []

    def config(self, **settings: Any) -> ModelConfig:
        return ModelConfig.parse({"model": str(self.model), "backend": "fake", "max_num_seqs": 8} | settings)

    def resolved_config(self) -> ModelConfig:
        """As clients send it."""
        return msgspec.structs.replace(self.config(), revision=revision_of(source_of(str(self.model)), self.model))

    def open(
        self,
        settings: ManagerConfig = SETTINGS,
        command: Sequence[str] = MANAGER,
        job: str = "job",
        on_demand: bool = False,
        **model: Any,
    ) -> EngineClient:
        places: dict[str, Any] = {"runtime": self.runtime, "manager_command": command, "on_demand": on_demand}
        client = EngineClient.open(self.config(**model), manager=settings, job=job, chat=False, **places)
        self._clients.append(client)
        return client

    def open_under_hasty_manager(self) -> EngineClient:
        """A client that is patient with a manager that soon takes others for hung.

        The hasty client that starts the manager may take it for hung itself; then the patient one starts another.
        """

        def opened() -> EngineClient | None:
            with self.open(HASTY):
                client = self.open()
            if any(each.name == "hang_timeout" for each in client.unmet):
                return client
            client.close()
            self.wait_until_gone()
            return None

        client: EngineClient = eventually(opened, "a hasty manager")
        return client

    def worker(self, requests: int, tokens: int, prefix: str = "") -> subprocess.Popen[str]:
        """A process that has a client and submits; it prints `ready`, then the token ids by request id as JSON.

        Then it keeps its client until its standard input ends.
        """
        arguments = [str(self.runtime), str(self.model), str(requests), str(tokens), prefix]
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.model_manager.manager.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        self._workers.append(worker)
        return worker

    def behave(self, how: str) -> None:
        """See stand_in_engine: how the next engine is to fail."""
        (self.model / "behaviour").write_text(how)

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Until the block ends, each stand-in engine makes ten steps and waits; each call of the yielded function
        allows ten more. A request that takes more steps is running, and does not end.
        """
        hold = self.model / "hold"
        hold.touch()
        try:
            yield hold.touch
        finally:
            hold.unlink()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the manager for the block: no request ends, whatever a client does."""
        manager = self.status().pid
        kill(manager, signal.SIGSTOP)
        try:
            yield
        finally:
            kill(manager, signal.SIGCONT)

    def starts(self) -> int:
        """How many engines were ever started."""
        return len((self.model / "starts").read_text().splitlines())

    def status(self) -> Status:
        """What the manager says, however long it takes; where the manager is replaced, what the next one says."""
        status: Status = eventually(lambda: status_of(self.runtime), "a manager that answers")
        return status

    def job(self, name: str) -> JobStatus:
        (job,) = (each for each in self.status().jobs if each.job == name)
        return job

    def model_status(self) -> ModelStatus:
        (model,) = self.status().models
        return model

    def engine_pid(self) -> int:
        pids: list[int] = eventually(lambda: self.model_status().pids, "an engine")
        return pids[0]

    def processes(self) -> list[psutil.Process]:
        """Managers and engines that belong to this machine."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                arguments = process.cmdline()
                ours = {str(self.runtime), str(self.model)} & set(arguments)
                is_worker = "tests.model_manager.manager.worker" in arguments
                if ours and not is_worker and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_until_gone(self) -> None:
        """No process, socket, lock or folder is left."""
        eventually(lambda: not self.runtime.exists() and not self.processes(), "nothing left")

    def clean_up(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.communicate()
        for client in self._clients:
            client.close()
        try:
            self.wait_until_gone()
        finally:
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)


def in_the_end(attempt: Callable[[str], bool]) -> int:
    """Repeat an attempt, each time with another name, until it tells that it came in time; how many there were.

    On a busy machine what an attempt is to disturb may be over by then.
    """
    for number in range(_MOST_ATTEMPTS):
        if attempt(f"attempt {number}"):
            return number + 1
    raise AssertionError(f"too late {_MOST_ATTEMPTS} times")


def results(worker: subprocess.Popen[str]) -> dict[str, list[int]]:
    """What a worker printed last."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    found: dict[str, list[int]] = json.loads(worker.stdout.readline() if line == "ready\n" else line)
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        made.clean_up()


@contextlib.contextmanager
def standing(folder: Path, command: Sequence[str]) -> Iterator[Machine]:
    """A machine whose manager and engine several tests use, as a client stays: each with jobs of its own."""
    made = Machine(folder)
    try:
        made.open(command=command, job="stays")
        yield made
    finally:
        made.clean_up()


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """A signal to one process that this test started."""
    os.kill(pid, number)

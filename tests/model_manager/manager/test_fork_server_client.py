"""Engines are forked by the fork server: what each has of its own, and what goes on when one of them is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psutil
import pytest

from millrace.model_manager.client.access import start_manager
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.client.status import stop_models
from millrace.model_manager.manager import fork_server_client, fork_server_process
from millrace.model_manager.manager.fork_server_client import ForkedProcess, ForkServer
from millrace.model_manager.manager.launching import Launcher
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import PATIENCE, SETTINGS, Machine, kill
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a forked process becomes the manager's child on Linux")

_STAND_IN = (sys.executable, "-m", "tests.model_manager.manager.stand_in_fork_server")
_BROKEN = (sys.executable, "-c", "raise SystemExit('no torch')")


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.setattr(fork_server_process, "FORK_SERVER_COMMAND", _STAND_IN)
    monkeypatch.setattr(fork_server_client, "_READY_WITHIN", PATIENCE)
    monkeypatch.setattr(fork_server_client, "_FORKED_WITHIN", PATIENCE)
    made = ForkServer()
    yield made
    made.close()


@asynccontextmanager
async def _forked(
    fork_server: ForkServer, model: str, **variables: str
) -> AsyncIterator[tuple[ForkedProcess, socket.socket]]:
    forked = await fork_server.fork(model, variables)
    assert forked is not None
    process, ours = forked
    with ours:
        yield process, ours


async def _said(connection: socket.socket) -> object:
    return json.loads(await asyncio.to_thread(connection.recv, 2**16))


def test_each_has_its_own_variables_arguments_and_stderr_and_is_our_child(forking: ForkServer) -> None:
    async def two() -> None:
        async with (
            _forked(forking, "model-a", OMP_NUM_THREADS="1") as (first, to_first),
            _forked(forking, "model-b") as (second, to_second),
        ):
            before = os.environ.get("OMP_NUM_THREADS")
            us = os.getpid()
            assert await _said(to_first) == {"arguments": ["--model", "model-a"], "threads": "1", "parent": us}
            assert await _said(to_second) == {"arguments": ["--model", "model-b"], "threads": before, "parent": us}
            shown = psutil.Process(second.pid).cmdline()
            assert "millrace.model_manager.engine.process" in shown
            assert "model-b" in shown
            to_first.sendall(b"3")
            assert first.wait() == first.poll() == 3
            assert first.stderr.read() == b"it says this"
            assert second.poll() is None
            second.kill()
            assert second.wait() == -signal.SIGKILL
            first.stderr.close()
            second.stderr.close()

    asyncio.run(two())


def test_after_a_fork_server_that_was_killed_engines_go_on_and_the_next_is_forked_by_another(
    forking: ForkServer,
) -> None:
    async def two() -> None:
        async with _forked(forking, "a") as (first, to_first):
            assert forking._running is not None
            old = psutil.Process(forking._running.process.pid)
            old.kill()
            eventually(lambda: old.status() == psutil.STATUS_ZOMBIE)
            assert first.poll() is None
            async with _forked(forking, "b") as (second, to_second):
                for process, connection in ((first, to_first), (second, to_second)):
                    connection.sendall(b"0")
                    assert process.wait() == 0
                    process.stderr.close()

    asyncio.run(two())


def test_a_fork_server_that_ends_while_it_is_asked_is_replaced(
    forking: ForkServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed, it takes a while to give its memory back; until then it looks alive."""

    async def two() -> None:
        async with _forked(forking, "a") as (first, to_first):
            old = forking._running
            assert old is not None
            old.socket.shutdown(socket.SHUT_RDWR)
            async with _forked(forking, "b") as (second, to_second):
                assert forking._running not in (None, old)
                for process, connection in ((first, to_first), (second, to_second)):
                    connection.sendall(b"0")
                    assert process.wait() == 0
                    process.stderr.close()

    asyncio.run(two())
    assert not caplog.records


@contextmanager
def _descriptors(count: int) -> Iterator[None]:
    """This process can open that many files within, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(2)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 64, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(2))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)


def test_a_manager_that_can_open_no_further_file_keeps_its_fork_server_and_leaves_no_process_behind(
    forking: ForkServer,
) -> None:
    async def try_all() -> list[bool]:
        could = []
        async with _forked(forking, "a") as (first, to_first):
            running, children = forking._running, {*psutil.Process().children()}
            for count in range(7):
                with _descriptors(count), contextlib.suppress(OSError):
                    async with _forked(forking, "b") as (process, connection):
                        connection.sendall(b"0")
                        assert process.wait() == 0
                        process.stderr.close()
                        could.append(True)
                could += [False] * (len(could) == count)
                assert forking._running is running
                assert {*psutil.Process().children()} <= children  # of other tests, one may be reaped meanwhile
            to_first.sendall(b"0")
            assert first.wait() == 0
            first.stderr.close()
        return could

    assert set(asyncio.run(try_all())) == {False, True}


def test_a_process_whose_end_nobody_can_ask_for_has_ended(forking: ForkServer) -> None:
    """As where whoever started the manager ignores SIGCHLD: its children leave no status behind."""

    async def one() -> None:
        async with _forked(forking, "a") as (process, connection):
            connection.sendall(b"0")
            os.waitpid(process.pid, 0)
            assert process.poll() == process.wait() == 0
            process.kill()
            process.stderr.close()

    asyncio.run(one())


def test_where_the_fork_server_fails_engines_are_started_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fork_server_process, "FORK_SERVER_COMMAND", _BROKEN)

    async def two() -> None:
        launcher = Launcher()
        for _ in range(3):
            process, ours = await launcher.launch(ModelConfig(backend="torch"), ())
            assert isinstance(process, subprocess.Popen)
            with process:
                ours.close()
                assert process.wait() == 0
        launcher.close()

    asyncio.run(two())
    assert len([each for each in caplog.records if "fork server" in each.message]) == 2, "tried once more"


def test_the_manager_starts_the_fork_server_before_its_own_imports() -> None:
    code = "import sys, millrace.model_manager.manager.process; print({'asyncio', 'msgspec', 'ssl'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


@pytest.mark.usefixtures("forking")
def test_a_fork_server_that_was_started_early_is_the_one_that_forks() -> None:
    early = fork_server_process.start_fork_server()
    made = ForkServer(early)

    async def one() -> None:
        async with _forked(made, "a") as (process, connection):
            assert psutil.Process(early.process.pid).is_running()
            assert made.start() is early, "no second one was started"
            connection.sendall(b"0")
            assert process.wait() == 0
            process.stderr.close()

    asyncio.run(one())
    made.close()
    assert early.process.poll() == -signal.SIGKILL


def test_whoever_is_killed_requests_are_answered_and_nothing_is_left(machine: Machine) -> None:
    client = machine.open(command=MANAGER_COMMAND, backend="torch", num_threads=1, max_model_len=64)

    def ask(name: str) -> list[int]:
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        return client.submit([1, 2, 3], params, request_id=name).result(PATIENCE).token_ids

    answer = ask("first")
    engine = psutil.Process(machine.engine_pid())
    manager = psutil.Process(engine.ppid())
    (fork_server,) = [each for each in manager.children() if each.name() == "millrace-warm"]
    assert fork_server.num_threads() == 1
    kill(engine.pid)
    assert ask("by its successor") == answer
    assert {fork_server.pid, machine.engine_pid()} == {each.pid for each in manager.children()}, "it was not forked"
    kill(fork_server.pid)
    assert ask("without the fork server") == answer
    kill(machine.engine_pid())
    assert ask("by one of another fork server") == answer
    left = manager.children()
    assert {each.name() for each in left} == {"millrace-warm", "millrace-engine"}
    kill(manager.pid)
    psutil.wait_procs(left, PATIENCE)
    assert not any(each.is_running() for each in left)
    client.close()
    RuntimeDir(machine.runtime).sweep()


@pytest.mark.parametrize(("backend", "imported"), [("torch", {"millrace-warm"}), ("fake", set())])
def test_a_manager_started_ahead_imports_what_forked_engines_need(
    machine: Machine, backend: str, imported: set[str]
) -> None:
    runtime = RuntimeDir(machine.runtime)
    start_manager(runtime, machine.config(backend=backend), SETTINGS.parse({"linger": 600.0}))
    try:
        manager = psutil.Process(machine.status().pid)
        if imported:
            eventually(lambda: {each.name() for each in manager.children()} == imported)
        with machine.open(command=MANAGER_COMMAND, backend=backend):
            assert machine.status().pid == manager.pid
            assert {each.name() for each in manager.children() if each.pid != machine.engine_pid()} == imported
    finally:
        stop_models(runtime)

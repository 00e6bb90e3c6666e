"""Each test drives a real inference process, with the fake engine, over a real socket pair."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from millrace.model_manager.engine.manager_link import MALFORMED_INPUT
from millrace.model_manager.engine.process import LOAD_FAILED, STEP_FAILED
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.engine_messages import (
    EngineFailed,
    EngineMessage,
    EngineReady,
    Heartbeat,
    Shutdown,
    StartEngine,
    StepReport,
)
from millrace.model_manager.wire.messages import Cancel, Message, Submit
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import EngineStats
from millrace.model_manager.wire.transport import Connection, ConnectionLost
from tests.model_manager.engine.scheduling.test_stopping import FOLDER
from tests.processes import is_gone
from tests.waiting import eventually

DEADLINE = 300.0
M = TypeVar("M", bound=Message)


class Manager:
    """This end: sends messages, and waits for those that a test expects."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[str]) -> None:
        self.sock = sock
        self.process = process
        self.connection: Connection[EngineMessage] = Connection(sock, EngineMessage)
        self.outputs: dict[str, Output] = {}
        self.failures: dict[str, str] = {}
        self.progress: dict[str, list[int]] = {}
        self.stats: list[EngineStats] = []

    def send(self, message: Message) -> None:
        self.connection.send(message)

    def start(self, folder: Path = FOLDER, heartbeat: float = 30.0, **config: object) -> None:
        settings = ModelConfig.parse({"backend": "fake", **config})
        self.send(StartEngine(config=settings, folder=str(folder), heartbeat=heartbeat))

    def ready(self, **config: object) -> EngineReady:
        self.start(**config)  # type: ignore[arg-type]
        return self.expect(EngineReady)

    def submit(self, *requests: Request) -> None:
        self.send(Submit(key="", requests=list(requests)))

    def expect(self, kind: type[M]) -> M:
        """The next message of that kind; reports on the way are noted."""
        while True:
            message = self.connection.receive()
            if isinstance(message, StepReport):
                self._note(message)
            if isinstance(message, kind):
                return message

    def until(self, condition: Callable[[], bool]) -> None:
        """Take reports until the condition holds."""
        while not condition():
            self.expect(StepReport)

    def _note(self, report: StepReport) -> None:
        self.outputs |= {output.request_id: output for output in report.outputs}
        self.failures |= {failure.request_id: failure.error.kind for failure in report.failures}
        for request_id, tokens in report.progress.items():
            self.progress.setdefault(request_id, []).extend(tokens)
        self.stats += [report.stats] if report.stats else []

    def ended(self) -> tuple[int, str]:
        """Exit status and log, once the process is gone."""
        _, log = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, log


@contextmanager
def engine_process(**environment: str) -> Iterator[Manager]:
    ours, theirs = socket.socketpair()
    ours.settimeout(DEADLINE)
    command = [
        sys.executable,
        "-m",
        "millrace.model_manager.engine.process",
        "--fd",
        str(theirs.fileno()),
        "--model",
        "tiny",
    ]
    with ours:
        with theirs:
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | environment,
            )
        try:
            yield Manager(ours, process)
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def manager() -> Iterator[Manager]:
    with engine_process() as started:
        yield started


@pytest.fixture
def slow_manager() -> Iterator[Manager]:
    """The engine's steps take a second."""
    with engine_process(MILLRACE_FAKE_STEP_SECONDS="1") as started:
        yield started


def request(name: str, max_tokens: int = 5, prompt: list[int] | None = None) -> Request:
    return Request(name, prompt or [5, 6, 7], SamplingParams(max_tokens=max_tokens))


def test_a_file_that_differs_from_its_checksum_is_told_before_it_is_loaded(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "model")
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  model.safetensors\n")
    with engine_process() as manager:
        manager.start(folder=folder)
        error = manager.expect(EngineFailed).error
    assert (error.kind, error.message.partition(":")[0]) == ("ModelCorrupt", str(folder / "model.safetensors"))


def test_memory_that_is_short_as_libraries_are_loaded_is_told_with_what_to_change() -> None:
    with engine_process() as manager:
        psutil.Process(manager.process.pid).rlimit(psutil.RLIMIT_AS, (2**30, 2**30))
        manager.start(backend="torch")
        error = manager.expect(EngineFailed).error
    assert error.kind == "ModelDoesNotFit"
    assert "memory is short as the engine starts" in error.message
    assert "1.0 GiB of address space (ulimit -v), and an engine takes about 4.5 GiB" in error.message
    assert error.message.endswith("raise the limit")


def test_a_loaded_model_says_what_it_is_and_answers_requests(manager: Manager) -> None:
    info = manager.ready(max_num_seqs=7).info
    assert (info.name, info.folder, info.max_num_seqs, info.vocab_size) == ("millrace-tiny", str(FOLDER), 7, 1536)
    manager.submit(request("a"), request("b", max_tokens=3))
    manager.until(lambda: manager.outputs.keys() == {"a", "b"})
    assert [len(manager.outputs[name].token_ids) for name in "ab"] == [5, 3]


def test_progress_of_a_stream_is_every_token_but_the_last_and_idling_is_reported(manager: Manager) -> None:
    manager.ready()
    manager.submit(msgspec.structs.replace(request("a"), stream=True))
    manager.until(lambda: "a" in manager.outputs)
    assert manager.progress["a"] == manager.outputs["a"].token_ids[:-1]
    manager.until(lambda: bool(manager.stats) and manager.stats[-1].running == 0)
    assert manager.stats[-1].generated_tokens == 5


def test_a_request_that_cannot_run_fails_alone(manager: Manager) -> None:
    manager.ready()
    manager.submit(request("long", prompt=[5] * 5000), Request("none", [], SamplingParams()), request("good"))
    manager.until(lambda: "good" in manager.outputs and len(manager.failures) == 2)
    assert manager.failures == {"long": "PromptTooLong", "none": "InvalidRequest"}
    assert manager.outputs.keys() == {"good"}


def test_a_refusal_alone_is_answered_at_once(manager: Manager) -> None:
    manager.ready()
    manager.submit(request("long", prompt=[5] * 5000))
    manager.until(lambda: manager.failures == {"long": "PromptTooLong"})


def test_a_cancelled_request_is_answered_with_what_it_has() -> None:
    with engine_process(MILLRACE_FAKE_STEP_SECONDS="0.02") as manager:
        manager.ready()
        manager.submit(request("a", max_tokens=900))
        manager.until(lambda: "a" in manager.progress)
        manager.send(Cancel(key="", request_ids=["a", "unknown"]))
        manager.until(lambda: "a" in manager.outputs)
        assert manager.outputs["a"].finish_reason is FinishReason.ABORT
        assert manager.outputs["a"].token_ids[: len(manager.progress["a"])] == manager.progress["a"]


def test_signs_of_life_come_while_a_step_runs(slow_manager: Manager) -> None:
    manager = slow_manager
    manager.ready(heartbeat=0.05)
    assert manager.expect(Heartbeat).in_step == 0.0

    def signs_in_step(name: str) -> int:
        manager.submit(request(name, max_tokens=1))
        in_step = []
        while name not in manager.outputs:
            message = manager.connection.receive()
            if isinstance(message, Heartbeat):
                in_step += [message.in_step] if message.in_step > 0 else []
            elif isinstance(message, StepReport):
                manager._note(message)
        assert in_step == sorted(in_step)
        return len(in_step)

    assert any(signs_in_step(f"{number}") >= 2 for number in range(20)), "else the process stood still for the step"
    while manager.expect(Heartbeat).steps == 0:
        pass


@pytest.mark.parametrize("how", ["close", "shutdown"])
def test_the_end_comes_at_once_even_within_a_step(slow_manager: Manager, how: str) -> None:
    manager = slow_manager
    manager.ready(heartbeat=0.05)
    manager.submit(request("a", max_tokens=900))
    while manager.expect(Heartbeat).in_step == 0.0:
        pass
    if how == "close":
        manager.connection.close()
    else:
        manager.send(Shutdown())
    status, log = manager.ended()
    assert status == 0
    assert ("the manager is gone" if how == "close" else "shut down by the manager") in log


def test_a_manager_that_goes_before_it_said_anything_ends_it(manager: Manager) -> None:
    manager.connection.close()
    status, log = manager.ended()
    assert status == 0
    assert "the manager is gone" in log


@pytest.mark.parametrize(
    ("loaded", "body"),
    [(True, b"hello"), (False, msgspec.msgpack.encode({"type": "Nobody"})), (True, b"\xc1"), (False, None)],
)
def test_malformed_input_ends_it_with_a_status_of_its_own(manager: Manager, loaded: bool, body: bytes | None) -> None:
    if loaded:
        manager.ready()
    too_long = struct.pack("!I", 2**31)
    manager.sock.sendall(too_long if body is None else struct.pack("!I", len(body)) + body)
    status, log = manager.ended()
    assert status == MALFORMED_INPUT
    assert "malformed input" in log


def test_a_first_message_that_starts_nothing_is_malformed(manager: Manager) -> None:
    manager.submit(request("a"))
    status, log = manager.ended()
    assert status == MALFORMED_INPUT
    assert "Submit came before StartEngine" in log


def test_a_model_that_cannot_be_loaded_is_reported_by_its_class(manager: Manager, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("no tokenizer")
    manager.start(folder=tmp_path)
    assert manager.expect(EngineFailed).error.kind == "ModelCorrupt"
    status, log = manager.ended()
    assert status == LOAD_FAILED
    assert "tiny is not loaded" in log


def test_what_nobody_expected_in_loading_is_reported_with_its_text() -> None:
    with engine_process(MILLRACE_FAKE_STEP_SECONDS="soon") as manager:
        manager.start()
        error = manager.expect(EngineFailed).error
        assert error.kind == "ModelLoadFailed"
        assert "'soon'" in error.message


def test_a_step_that_raises_ends_the_process() -> None:
    with engine_process(MILLRACE_FAKE_STEP_SECONDS="-1") as manager:  # sleep() refuses it
        manager.ready()
        manager.submit(request("a"))
        with pytest.raises(ConnectionLost):
            manager.expect(StepReport)
        status, log = manager.ended()
        assert status == STEP_FAILED
        assert "a step failed" in log
        assert "ValueError" in log


def test_the_keyboards_interrupt_is_left_to_the_manager(manager: Manager) -> None:
    manager.ready()
    manager.process.send_signal(signal.SIGINT)
    manager.submit(request("a"))
    manager.until(lambda: "a" in manager.outputs)


def test_ps_shows_role_and_model(manager: Manager) -> None:
    manager.ready()
    shown = psutil.Process(manager.process.pid)
    assert shown.cmdline()[1:] == [
        *("-m", "millrace.model_manager.engine.process"),
        *("--fd", shown.cmdline()[4], "--model", "tiny"),
    ]
    assert shown.name() == "millrace-engine"


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_it_dies_with_the_manager_even_when_the_socket_stays_open() -> None:
    ours, theirs = socket.socketpair()
    starter = (
        "import subprocess, sys, time\n"
        "fd = sys.argv[1]\n"
        "engine = subprocess.Popen([sys.executable, '-m', 'millrace.model_manager.engine.process', '--fd', fd],"
        " pass_fds=[int(fd)])\n"
        "print(engine.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with ours, theirs:
        ours.settimeout(DEADLINE)
        parent = subprocess.Popen(
            [sys.executable, "-c", starter, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        with parent:
            assert parent.stdout is not None
            engine = psutil.Process(int(parent.stdout.readline()))
            manager = Manager(ours, parent)
            manager.ready()
            parent.kill()
        eventually(lambda: is_gone(engine), "the engine's end")

"""Real servers of tests: started in their own environments, asked, killed, and looked for afterwards.

A mark in the environment tells which processes belong to a test: those that it starts, and all that these start.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sysconfig
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from millrace.model_manager.backends.endpoint.engine import EndpointEngine
from millrace.model_manager.client import EngineClient
from millrace.model_manager.wire.errors import ModelLoadFailed
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import drained
from tests.model_manager.backends.environments import made, named
from tests.servers.processes import serving
from tests.waiting import eventually

PROGRAMS = Path(__file__).with_name("programs")
PATIENCE = 300.0
"""Seconds; Ray takes half a minute to start on a busy machine."""
VLLM_SERVER = (
    "-m vllm.entrypoints.openai.api_server --model {model} --port {port}"
    " --max-model-len 512 --gpu-memory-utilization 0.2 --enforce-eager --dtype float32"
)
"""What starts vLLM's server with its Python, as the option `command` takes it."""
_MARK = "MILLRACE_TEST_SERVERS_OF"


@dataclass(frozen=True)
class Family:
    """The processes of a test."""

    name: str

    def left(self) -> list[psutil.Process]:
        """Those that run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self.name and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self) -> None:
        """End all of them at once, as a machine that loses its power does."""
        while left := self.left():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(left, timeout=1.0)


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    """What the test starts; none of it outlives the test. Before `machine` in its arguments, so that it looks last."""
    found = Family(str(tmp_path))
    monkeypatch.setenv(_MARK, found.name)
    try:
        yield found
        eventually(lambda: not found.left(), "the end of all that the test started")
    finally:
        found.kill()


def environment_of(name: str) -> Path:
    """The Python of a server's environment."""
    if name not in named():
        pytest.skip("ENGINES names others")
    return made(name)


def python_of(name: str) -> Sequence[str]:
    """A command that runs a server's Python, whose own library Triton's stubs find by LD_LIBRARY_PATH."""
    return ("env", f"LD_LIBRARY_PATH={sysconfig.get_config_var('LIBDIR')}", str(environment_of(name)))


def serve_config(folder: Path, port: int) -> Path:
    """What Ray's `serve run` takes, as a user writes it."""
    application = {
        "name": "m",
        "route_prefix": "/",
        "import_path": "ray_app:app",
        "args": {"folder": str(folder)},
        "runtime_env": {"env_vars": {"PYTHONPATH": str(PROGRAMS)}},
    }
    config = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    path = folder / "serve.yaml"
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short, as those of sockets must be (108 bytes); it goes afterwards."""
    folder = tempfile.mkdtemp(prefix="test", dir="/tmp")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> Path:
    """Where Ray keeps its files."""
    monkeypatch.setenv("RAY_TMPDIR", str(short_folder))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return short_folder


@contextlib.contextmanager
def remote(command: Sequence[str | Path], health: str, log: Path) -> Iterator[None]:
    """A server that somebody else runs: there once its health route answers 200."""
    with serving(command, lambda: answers(health), log=log):
        yield


def answers(url: str) -> bool:
    """Whether a route answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def main_process(family: Family, argument: str) -> int:
    """Process id of a server that a guard has started: the first one that has this argument."""
    found: list[psutil.Process] = []

    def look() -> bool:
        found[:] = [each for each in family.left() if _is_server(each, argument)]
        return bool(found)

    eventually(look, f"a server with {argument}")
    return min(found, key=lambda process: process.create_time()).pid


def _is_server(process: psutil.Process, argument: str) -> bool:
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    return argument in arguments and "millrace.model_manager.backends.server.guard" not in arguments


def expect_the_job_to_fail(engine: EndpointEngine) -> None:
    """No server is left: the circuit opens, and after `down_timeout` the job ends."""
    with pytest.raises(ModelLoadFailed, match="no server has answered a request for"):
        drained(engine)


def kill(pid: int) -> None:
    """End one process."""
    os.kill(pid, signal.SIGKILL)


def expect_answers_over_a_death(
    client: EngineClient,
    prompts: Mapping[str, int],
    held: Callable[[], object],
    server: Callable[[], int],
    release: Path,
) -> None:
    """Every prompt is answered with as many of its words, though the server is killed while it holds requests back.

    `held`: it does; `server`: its process id; `release`: the file at whose sight servers hold nothing back.
    """
    futures = {
        prompt: client.submit(prompt, SamplingParams(max_tokens=words), request_id=prompt)
        for prompt, words in prompts.items()
    }
    eventually(held, "requests that are held")
    kill(server())
    release.touch()
    found = {prompt: future.result(PATIENCE).text for prompt, future in futures.items()}
    assert found == {prompt: counted(prompt, words) for prompt, words in prompts.items()}


ROWS = {f"{number} is a row of eight words é": 1 + number % 7 for number in range(50)}
"""Prompts for models that answer with the prompt's own words, and how many words are wanted."""


def counted(prompt: str, words: int) -> str:
    """What such a model answers."""
    return " ".join(prompt.split()[:words])

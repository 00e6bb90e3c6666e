"""Whole jobs, as a user starts them, over each engine and server, while it is killed, stopped and shared."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, cache_folder
from tests.job_commands import job_command, started
from tests.json_lines import rows_of
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.backends.real_servers import (
    PROGRAMS,
    VLLM_SERVER,
    counted,
    environment_of,
    python_of,
    ray_folder,
    serve_config,
    short_folder,
)
from tests.model_manager.backends.scenarios import PATIENCE
from tests.pipelines.job.job_processes import all_at_once, engines_of, ids, nothing_is_left
from tests.runtime_folders import status_of
from tests.servers.processes import free_port, listening
from tests.waiting import eventually

ROWS = 300
FLAGS = {
    "llama_cpp": ["--max_num_seqs=8"],
    "openvino": ["--max_num_seqs=8", "--dtype=float32", "--kv_cache_gib=1"],
    "ctranslate2": ["--max_num_seqs=8", "--dtype=float32"],
    "vllm": ["--max_num_seqs=16", "--dtype=float32", "--kv_cache_gib=1", "--backend_options", "enforce_eager=true"],
}
"""Flags of `millrace run`: few sequences at once, so that a job lasts long enough for what is done to it."""
SERVERS = ("llama-server", "vllm-server", "triton", "ray")
T = TypeVar("T")

__all__ = ["ray_folder", "short_folder"]

pytestmark = pytest.mark.engines


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_folder: Path) -> Iterator[Path]:
    """A runtime folder and a folder for temporary files of the jobs' own."""
    folder = tmp_path / "rt"
    scratch = ray_folder / "scratch"  # vLLM has sockets there, so its path must be short
    scratch.mkdir()
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(scratch))
    yield folder
    stop_models(folder)


@dataclass(frozen=True)
class Subject:
    """An engine under test, or a server."""

    flags: list[str]
    """Of `millrace run`."""
    is_server: bool = False
    has_model: bool = True
    """It generates tokens; else its answers are the prompts' own words."""
    port: int = 0
    """Where the server listens."""
    shares: bool = False
    """The server has files outside its folder, in shared memory say."""
    replaces_its_listener: bool = False
    """It starts another process at its port when that one is killed, so millrace need not start it again."""

    def of_server(self, runtime: Path) -> list[psutil.Process]:
        """The processes of the server that millrace has started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child for each in engines(runtime) for child in each.children(recursive=True) if self.is_server]
        return []

    def answerer(self, runtime: Path) -> psutil.Process | None:
        """The process that answers: the inference process, or the one that listens at the port of the server that it
        has started; None between two.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            found = self.of_server(runtime) if self.is_server else engines(runtime)
            if self.is_server:
                found = [process for process in found if self.port in ports_of(process)]
            return min(found, key=psutil.Process.create_time, default=None)  # children may have inherited its socket
        return None


def engines(runtime: Path) -> list[psutil.Process]:
    """The inference processes."""
    return [psutil.Process(pid) for pid in engines_of(runtime)]


def ports_of(process: psutil.Process) -> set[int]:
    """Where it takes connections."""
    with contextlib.suppress(psutil.Error):
        return {port for _, port in listening(process.pid)}
    return set()


def server_flags(name: str, folder: Path, port: int) -> list[str]:
    """A server that millrace starts."""
    match name:
        case "llama-server":
            model = str(write_gguf(folder / "tiny-f32.gguf"))
            command = shlex.join([*python_of("llama_cpp"), str(PROGRAMS / "llama.py"), "{model}", "{port}"])
            options = ["preset=llama-server", "dialect=llama-completion"]
        case "vllm-server":
            model = str(resolve(EMBEDDED_MODEL))
            alone = "env OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind"  # its threads spin
            command, options = f"{alone} {environment_of('vllm')} {VLLM_SERVER}", ["preset=vllm"]
        case "triton":
            model = "m"
            words = [*python_of("pytriton"), str(PROGRAMS / "triton.py"), "{port}", str(free_port()), str(folder)]
            command, options = shlex.join(words), ["preset=triton", "health=/v2/models/m/ready"]
        case _:
            model = str(serve_config(folder, port))
            command = f"{environment_of('ray').with_name('serve')} run {{model}}"
            options = ["preset=ray", "dialect=openai-completions", "served_model=m"]
    slow = name == "vllm-server"  # on a busy machine its health route takes seconds
    flags = ["--backend=server", f"--model={model}", f"--max_num_seqs={32 if slow else 8}"]
    flags += [f"--server_command={command}", "--backend_options", f"hang_timeout={30 if slow else 5}"]
    return [*flags, f"port={port}", *options]


@pytest.fixture(scope="module", params=[*FLAGS, *SERVERS])
def subject(
    request: pytest.FixtureRequest,
    engine_python: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Subject:
    """Over the embedded model, where it is an engine for models."""
    name: str = request.param
    folder = tmp_path_factory.mktemp("models")
    ends = ["--linger=0.5", "--orphan_grace=0.5"]
    if name in SERVERS:
        port = free_port()
        return Subject(
            [*ends, *server_flags(name, folder, port)],
            is_server=True,
            has_model=name not in ("triton", "ray"),
            port=port,
            shares=name == "triton",
            replaces_its_listener=name == "ray",
        )
    engine_python(name)
    model = [f"--model={write_gguf(folder / 'tiny-f32.gguf')}"] if name == "llama_cpp" else []
    return Subject([*ends, "--backend", name, *model, *FLAGS[name]])


def row(number: int, *, has_model: bool = True) -> dict[str, Any]:
    """Every row has a length of its own, every third is sampled, every fourth ends at a string if that comes."""
    fields: dict[str, Any] = {"id": f"p{number}", "prompt": f"What is {number} plus {number % 7}?"}
    if not has_model:
        fields |= {"prompt": f"slow {fields['prompt']}", "max_tokens": 1 + number % 6}
        return fields | ({"stop": ["plus"]} if number % 4 == 0 else {})
    fields |= {"max_tokens": 12 + number % 36, "ignore_eos": True}
    if number % 3 == 0:
        fields |= {"temperature": 0.8, "top_p": 0.9}
    if number % 4 == 0:
        fields |= {"stop": ["7"]}
    return fields


@contextlib.contextmanager
def job(folder: Path, rows: int, subject: Subject, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`millrace run` in a process of its own, on so many rows."""
    folder.mkdir(exist_ok=True)
    source = folder / "rows.jsonl"
    asked = (row(number, has_model=subject.has_model) for number in range(rows))
    source.write_text("".join(json.dumps(each) + "\n" for each in asked))
    command = [*job_command("run", source, folder / "c"), *flags, *subject.flags]
    with started(command, stderr=subprocess.PIPE) as process:
        yield process


def complete(process: subprocess.Popen[str], folder: Path, rows: int, subject: Subject) -> None:
    """The job ends well, with each row answered once and by its own parameters."""
    _, shown = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, shown
    assert ids(folder) == sorted(f"p{number}" for number in range(rows))
    assert not list(folder.glob("*dead_letters*"))
    ended_by_stop = 0
    for answer in rows_of(folder, "c-*.jsonl"):
        asked = row(int(answer["id"][1:]), has_model=subject.has_model)
        stops = asked.get("stop", [])
        assert not [stop for stop in stops if stop in answer["text"]], answer
        if not subject.has_model:
            expected = words_of(asked)
            assert answer["text"] in (expected, expected.rstrip()), answer
            ended_by_stop += expected != counted(asked["prompt"], asked["max_tokens"])
        elif answer["finish_reason"] == "stop":
            assert stops, answer
            ended_by_stop += 1
        else:
            assert answer["usage"]["completion_tokens"] == asked["max_tokens"], answer
    assert ended_by_stop


def words_of(asked: dict[str, Any]) -> str:
    """What a model answers that repeats words of the prompt."""
    text = counted(asked["prompt"], asked["max_tokens"])
    for stop in asked.get("stop", ()):
        text = text.partition(stop)[0]
    return text


def nothing_at_all_is_left(runtime: Path) -> None:
    """No process, no socket or lock of theirs, and no file in the temporary folder."""
    nothing_is_left(runtime)
    scratch = Path(os.environ["TMPDIR"])
    assert [path for path in scratch.rglob("*") if not path.is_dir() or path.name.startswith("torchinductor")] == []
    conversions = cache_folder() / "conversions"  # where an engine of another test process may convert a model now
    eventually(lambda: not [*conversions.glob("*.unfinished")], "the end of conversions")


@contextlib.contextmanager
def stopped_once(job: subprocess.Popen[str], reached: Callable[[], T | None]) -> Iterator[T]:
    """Stops the job once `reached` returns a value, and yields that. The job does nothing in the block, nor ends."""

    def look() -> T | None:
        job.send_signal(signal.SIGSTOP)
        if (found := reached()) is None:
            job.send_signal(signal.SIGCONT)
        return found

    try:
        yield eventually(look, "the point at which the job is to be stopped")
    finally:
        job.send_signal(signal.SIGCONT)


def answering(
    subject: Subject, runtime: Path, rows: int, former: psutil.Process | None = None
) -> psutil.Process | None:
    """The process that answers, if it is not the former one, once so many rows are answered; None before."""
    found = subject.answerer(runtime)
    return found if found != former and sum(finished(runtime)) >= rows else None


def finished(runtime: Path) -> list[int]:
    """How many rows of each job are answered."""
    status = status_of(runtime)
    return [counted.finished for counted in status.jobs] if status else []


def files_used(subject: Subject, runtime: Path) -> set[Path]:
    """What the processes of a server use in /dev/shm, and where Triton runs its model from."""
    found = set[Path]()
    for process in subject.of_server(runtime):
        with contextlib.suppress(OSError, psutil.Error):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            arguments = "\n".join(process.cmdline())
            found |= {Path(each) for each in re.findall(r"/dev/shm/\S+$", maps, re.MULTILINE)}
            found |= {Path(each) for each in re.findall(r"^/tmp/folder[^/\n]{6}(?=/)", arguments, re.MULTILINE)}
    return found


def restarts(runtime: Path) -> int:
    """How often the model's engine was started again."""
    status = status_of(runtime)
    return sum(model.restarts for model in status.models) if status else 0


def test_rows_have_their_own_parameters_and_outlive_a_dead_and_a_hung_engine(
    runtime: Path, tmp_path: Path, subject: Subject
) -> None:
    with job(tmp_path / "out", ROWS, subject, "--hang_timeout=5") as process:
        with stopped_once(process, lambda: answering(subject, runtime, 10)) as first:
            used = files_used(subject, runtime)
            assert used or not subject.shares
            first.kill()
            more = sum(finished(runtime)) + 1
        with stopped_once(process, lambda: answering(subject, runtime, more, former=first)) as second:
            before = restarts(runtime)
            assert before >= 1 or subject.replaces_its_listener
            used |= files_used(subject, runtime)
            second.suspend()
        with stopped_once(process, lambda: restarts(runtime) > before or None):
            pass
        complete(process, tmp_path / "out", ROWS, subject)
    assert not second.is_running()
    assert not [path for path in used if path.exists()]
    nothing_at_all_is_left(runtime)


def test_two_jobs_share_an_engine_and_one_that_was_interrupted_is_resumed(
    runtime: Path, tmp_path: Path, subject: Subject
) -> None:
    patient = "--hang_timeout=60"
    with (
        job(tmp_path / "a", ROWS // 2, subject, patient) as first,
        job(tmp_path / "b", ROWS, subject, patient) as second,
    ):
        all_at_once(runtime, [first, second])
        with stopped_once(second, lambda: sum(rows >= 10 for rows in finished(runtime)) == 2 or None):
            (shared,) = engines_of(runtime)
            second.send_signal(signal.SIGINT)
        second.communicate(timeout=PATIENCE)
        assert second.returncode == 130
        complete(first, tmp_path / "a", ROWS // 2, subject)
        assert engines_of(runtime) <= {shared}
    with job(tmp_path / "b", ROWS, subject, "--resume") as second:
        complete(second, tmp_path / "b", ROWS, subject)
    nothing_at_all_is_left(runtime)

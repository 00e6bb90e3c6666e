"""Whole jobs, as a user starts them, over each engine, while it is killed, stopped and shared."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.store.cache_folder import cache_folder
from tests.job_commands import job_command
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.backends.scenarios import PATIENCE
from tests.pipelines.job.job_processes import clients_of, engines_of, ids, in_full_swing, nothing_is_left
from tests.runtime_folders import status_of
from tests.waiting import eventually

ROWS = 300
FLAGS = {
    "llama_cpp": ["--max_num_seqs=8"],
    "openvino": ["--max_num_seqs=8", "--dtype=float32", "--kv_cache_gib=1"],
    "ctranslate2": ["--max_num_seqs=8", "--dtype=float32"],
    "vllm": ["--max_num_seqs=16", "--dtype=float32", "--kv_cache_gib=1", "--backend_options", "enforce_eager=true"],
}
"""Of `millrace run`: few sequences at once, so that a job lasts long enough for what is done to it."""

pytestmark = pytest.mark.engines


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder and a folder for temporary files of the jobs' own."""
    folder = tmp_path / "rt"
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    yield folder
    stop_models(folder)


@pytest.fixture(scope="module", params=list(FLAGS))
def flags(
    request: pytest.FixtureRequest,
    engine_python: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[str]:
    """Flags of `millrace run` with an engine over the embedded model."""
    backend: str = request.param
    engine_python(backend)
    model = []
    if backend == "llama_cpp":
        model = [f"--model={write_gguf(tmp_path_factory.mktemp('models') / 'tiny-f32.gguf')}"]
    return ["--backend", backend, *model, *FLAGS[backend], "--hang_timeout=5", "--linger=0.5", "--orphan_grace=0.5"]


def row(number: int) -> dict[str, Any]:
    """Every row has a length of its own, every third is sampled, every fourth ends at a string if that comes."""
    fields: dict[str, Any] = {"id": f"p{number}", "prompt": f"What is {number} plus {number % 7}?"}
    fields |= {"max_tokens": 12 + number % 36, "ignore_eos": True}
    if number % 3 == 0:
        fields |= {"temperature": 0.8, "top_p": 0.9}
    if number % 4 == 0:
        fields |= {"stop": ["7"]}
    return fields


@contextlib.contextmanager
def job(folder: Path, rows: int, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`millrace run` in a process of its own, on so many rows."""
    folder.mkdir(exist_ok=True)
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row(number)) + "\n" for number in range(rows)))
    command = job_command("run", source, folder / "c")
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def complete(process: subprocess.Popen[str], folder: Path, rows: int) -> None:
    """The job ends well, with each row answered once and by its own parameters."""
    _, shown = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, shown
    assert ids(folder) == sorted(f"p{number}" for number in range(rows))
    assert not list(folder.glob("*dead_letters*"))
    for path in folder.glob("c-*.jsonl"):
        for line in path.read_text().splitlines():
            answer = json.loads(line)
            asked = row(int(answer["id"][1:]))
            if answer["finish_reason"] == "stop":
                assert asked.get("stop"), answer
            else:
                assert answer["usage"]["completion_tokens"] == asked["max_tokens"], answer


def nothing_at_all_is_left(runtime: Path) -> None:
    """No process, no socket or lock of theirs, and no file in the temporary folder."""
    nothing_is_left(runtime)
    scratch = Path(os.environ["TMPDIR"])
    assert [path for path in scratch.rglob("*") if not path.is_dir() or path.name.startswith("torchinductor")] == []
    conversions = cache_folder() / "conversions"  # where an engine of another test process may convert a model now
    eventually(lambda: not [*conversions.glob("*.unfinished")], "the end of conversions")


def other_engine(runtime: Path, former: int) -> int:
    """Wait until another inference process has finished requests; its pid."""
    before = finished(runtime)

    def found() -> int | None:
        status = status_of(runtime)
        engines = {process.pid for process in status.processes if process.role == "engine"} if status else set()
        return next(iter(engines - {former}), None) if finished(runtime) > before else None

    pid: int = eventually(found, "another engine answers")
    return pid


def finished(runtime: Path) -> int:
    status = status_of(runtime)
    return sum(counted.finished for counted in status.jobs) if status else 0


def test_rows_have_their_own_parameters_and_outlive_a_dead_and_a_hung_engine(
    runtime: Path, tmp_path: Path, flags: list[str]
) -> None:
    with job(tmp_path / "out", ROWS, *flags) as process:
        first = in_full_swing(runtime)["engine"]
        os.kill(first, signal.SIGKILL)
        second = other_engine(runtime, first)
        os.kill(second, signal.SIGSTOP)
        complete(process, tmp_path / "out", ROWS)
    assert not psutil.pid_exists(second)
    nothing_at_all_is_left(runtime)


def test_two_jobs_share_an_engine_and_one_that_was_interrupted_is_resumed(
    runtime: Path, tmp_path: Path, flags: list[str]
) -> None:
    with job(tmp_path / "a", ROWS // 2, *flags) as first, job(tmp_path / "b", ROWS, *flags) as second:
        eventually(lambda: len(clients_of(runtime)) == 2, "both jobs are there")
        in_full_swing(runtime)
        (shared,) = engines_of(runtime)
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=PATIENCE)
        assert second.returncode == 130
        complete(first, tmp_path / "a", ROWS // 2)
        assert engines_of(runtime) <= {shared}
    with job(tmp_path / "b", ROWS, *flags, "--resume") as second:
        complete(second, tmp_path / "b", ROWS)
    nothing_at_all_is_left(runtime)

"""`millrace metrics` beside a job: what it says agrees with `millrace ps`, and it keeps nothing alive."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace.model_manager.client.status import read_status, stop_models
from millrace.pipelines.cli import dispatch
from tests.job_commands import job_command, started
from tests.serving.metrics.scrapes import Scrape, scraped
from tests.waiting import eventually

_COMMAND = [sys.executable, "-m", "millrace", "metrics", "--port", "0"]
_JOB_FLAGS = ("--backend=fake", "--max_tokens=20", "--orphan_grace=0.1")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path / "rt"))
    yield tmp_path / "rt"
    stop_models(tmp_path / "rt")


@contextlib.contextmanager
def metrics() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command's process and its URL."""
    with started(_COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().rpartition(" ")[2].strip()


@contextlib.contextmanager
def job(folder: Path, *flags: str, step: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """A job of 300 rows."""
    (folder / "a.txt").write_text("".join(f"question {number}\n" for number in range(300)))
    command = [*job_command("run", folder / "a.txt", folder / "out/c"), *_JOB_FLAGS, *flags]
    env = os.environ | {"MILLRACE_FAKE_STEP_SECONDS": str(step)}
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as process:
        yield process


def numbers(scrape: Scrape) -> dict[tuple[Any, ...], float]:
    """Counters, by name and labels."""
    counters = (each for each in scrape.samples if each.name.endswith("_total"))
    return {(each.name, *sorted(each.labels.items())): each.value for each in counters}


@pytest.mark.usefixtures("runtime")
def test_what_it_says_during_a_job_never_falls_and_agrees_in_the_end_with_ps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with metrics() as (_, url), job(tmp_path, "--linger=300", step=0.02) as running:
        scrapes = [scraped(url)]
        with ThreadPoolExecutor(2) as pool:
            while running.poll() is None:
                both = [*pool.map(scraped, [url, url])]
                scrapes.append(both[0])
        assert running.returncode == 0, running.stdout and running.stdout.read()
        last = scraped(url)
        assert dispatch(["ps", "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
    assert any(0 < each.total("job_rows_done_total") < 300 for each in scrapes)
    assert any(each.total("num_requests_running") > 0 for each in scrapes)
    for earlier, later in zip(scrapes, [*scrapes[1:], last], strict=True):
        known = numbers(later)
        assert [name for name, value in numbers(earlier).items() if known[name] < value] == []
    (model,), (told,) = status["models"], status["jobs"]
    assert last.total("generation_tokens_total", engine=model["key"]) == model["stats"]["generated_tokens"] == 6000
    assert last.total("prompt_tokens_total", model_name=model["model"]) == model["stats"]["prompt_tokens"]
    assert last.total("job_rows_done_total", job=told["job"]) == told["finished"] == 300
    assert last.total("resident_memory_bytes", kind="engine") == int(model["stats"]["rss_mb"] * 2**20)


def test_scrapes_do_not_keep_a_manager_alive(runtime: Path, tmp_path: Path) -> None:
    with metrics() as (_, url), job(tmp_path, "--linger=0.1") as running:
        seen = []
        while running.poll() is None or scraped(url).total("up"):
            seen.append(scraped(url).total("up"))
        assert running.returncode == 0
    assert 1.0 in seen
    assert read_status(runtime) is None


def test_a_manager_that_is_killed_is_down_and_the_next_one_is_seen(runtime: Path, tmp_path: Path) -> None:
    with metrics() as (_, url):
        assert scraped(url).total("up") == 0, "before the first job"
        with job(tmp_path, "--linger=300") as running:
            assert running.wait(300) == 0
        assert scraped(url).total("job_rows_done_total") == 300
        status = read_status(runtime)
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)
        eventually(lambda: scraped(url).total("up") == 0)
        with job(tmp_path, "--linger=300", "--overwrite") as running:
            assert running.wait(300) == 0
        assert scraped(url).total("up") == 1


def test_a_killed_engine_is_a_restart_and_its_rows_are_done_all_the_same(tmp_path: Path, runtime: Path) -> None:
    with metrics() as (_, url), job(tmp_path, "--linger=300", step=0.02) as running:
        eventually(lambda: scraped(url).total("job_rows_done_total") > 0)
        status = read_status(runtime)
        assert status is not None
        os.kill(status.models[0].pids[0], signal.SIGKILL)
        assert running.wait(300) == 0
        seen = scraped(url)
    assert seen.total("engine_restarts_total") == 1
    assert (seen.total("job_rows_done_total"), seen.total("job_rows_failed_total")) == (300, 0)


def test_a_manager_that_hangs_is_down_until_it_goes_on(tmp_path: Path, runtime: Path) -> None:
    with metrics() as (_, url), job(tmp_path, "--linger=300") as running:
        assert running.wait(300) == 0
        status = read_status(runtime)
        assert status is not None
        os.kill(status.pid, signal.SIGSTOP)
        try:
            assert scraped(url).total("up") == 0
        finally:
            os.kill(status.pid, signal.SIGCONT)
        assert scraped(url).total("job_rows_done_total") == 300


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("runtime")
def test_a_signal_ends_it_with_0_and_no_word(number: signal.Signals) -> None:
    with metrics() as (process, url):
        scraped(url)
        process.send_signal(number)
        assert (*process.communicate(timeout=60), process.returncode) == ("", "", 0)
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--port", "{taken}"],
            "--port {taken}: cannot be listened on at 127.0.0.1: Address already in use; name another",
        ),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: is no address of this machine"),
        (["--port", "70000"], "--port 70000: takes 0 (a free one) to 65535"),
    ],
)
@pytest.mark.usefixtures("runtime")
def test_an_address_that_cannot_be_had_is_told_in_one_sentence(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with metrics() as (_, url):
        taken = str(httpx.URL(url).port)
        assert dispatch(["metrics", *(flag.format(taken=taken) for flag in flags)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"millrace: {told.format(taken=taken)}")


def test_it_imports_neither_beam_nor_torch_nor_the_servers_packages() -> None:
    program = (
        "import sys\n"
        "import millrace.pipelines.commands.metrics, millrace.serving.metrics.listening\n"
        "heavy = ('apache_beam', 'torch', 'transformers', 'uvicorn', 'starlette')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.usefixtures("runtime")
def test_a_site_whose_name_leads_here_reads_no_figures() -> None:
    with metrics() as (_, url):
        assert httpx.get(url, headers={"host": "evil.example"}).status_code == 403
        assert httpx.get(url, headers={"host": "localhost"}).status_code == 200

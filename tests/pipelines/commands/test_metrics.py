"""`millrace metrics` beside a job: what it says agrees with `millrace ps`, and it keeps nothing alive."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.messages import Status
from millrace.pipelines.cli import dispatch
from tests.job_commands import started
from tests.pipelines.answers import answered
from tests.processes import stopped
from tests.runtime_folders import status_of
from tests.serving.metrics.scrapes import Scrape, scraped
from tests.waiting import eventually

_COMMAND = [sys.executable, "-m", "millrace", "metrics", "--port", "0"]
_JOB_FLAGS = ("--backend=fake", "--max_tokens=20", "--orphan_grace=0.1", "--hang_timeout=120")


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
def looked(url: str) -> Iterator[list[Scrape]]:
    """What two who scrape at a time are told, until the block ends."""
    scrapes, over = [scraped(url)], threading.Event()

    def look() -> None:
        with ThreadPoolExecutor(2) as pool:
            while not over.wait(0.03):
                first, _ = pool.map(scraped, [url, url])
                scrapes.append(first)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield scrapes
    finally:
        over.set()
        thread.join()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a job of 300 rows to its end."""
    (tmp_path / "a.txt").write_text("".join(f"question {number}\n" for number in range(300)))

    def job(*flags: str, step: float = 0.0) -> None:
        monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", str(step))
        places = ("--input", f"{tmp_path}/a.txt", "--output", f"{tmp_path}/out/c", "--overwrite", "--quiet")
        assert dispatch(["run", *places, *_JOB_FLAGS, *flags]) == 0

    return job


def up(url: str) -> Scrape | None:
    """What it is told, if a manager answers."""
    scrape = scraped(url)
    return scrape if scrape.total("up") == 1 else None


def numbers(scrape: Scrape) -> dict[tuple[Any, ...], float]:
    """Counters and histograms, by name and labels."""
    counters = (each for each in scrape.samples if each.name.endswith(("_total", "_bucket", "_count", "_sum")))
    return {(each.name, *sorted(each.labels.items())): each.value for each in counters}


@pytest.mark.usefixtures("runtime")
def test_what_it_says_during_a_job_never_falls_and_agrees_in_the_end_with_ps(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with metrics() as (_, url):
        with looked(url) as scrapes:
            run("--linger=300", step=0.05)
        last = eventually(lambda: up(url))
        capsys.readouterr()
        answered("ps", "--json")
        status = json.loads(capsys.readouterr().out)
    assert any(0 < each.total("job_rows_done_total") < 300 for each in scrapes)
    assert any(each.total("num_requests_running") > 0 for each in scrapes)
    never_falls([*scrapes, last])
    assert any(0 < each.total("e2e_request_latency_seconds_count") < 300 for each in scrapes)
    assert any(each.total("credits") >= each.total("credits_in_use") > 0 for each in scrapes)
    (model,), (told,) = status["models"], status["jobs"]
    assert last.total("generation_tokens_total", engine=model["key"]) == model["stats"]["generated_tokens"] == 6000
    assert last.total("prompt_tokens_total", model_name=model["model"]) == model["stats"]["prompt_tokens"]
    assert last.total("job_rows_done_total", job_name=told["job"]) == told["finished"] == 300
    assert last.total("resident_memory_bytes", kind="engine") == int(model["stats"]["rss_mb"] * 2**20)


def never_falls(scrapes: Sequence[Scrape]) -> None:
    for earlier, later in itertools.pairwise(each for each in scrapes if each.total("up") == 1):
        known = numbers(later)
        assert [name for name, value in numbers(earlier).items() if known[name] < value] == []


@pytest.mark.usefixtures("runtime")
def test_histograms_have_the_times_of_every_row(run: Callable[..., None], tmp_path: Path) -> None:
    with metrics() as (_, url):
        run("--linger=300", step=0.001)
        seen = eventually(lambda: up(url))
    rows = [json.loads(line) for path in tmp_path.glob("out/c*.jsonl") for line in path.read_text().splitlines()]
    queued, first, last = ([row["timings"][name] for row in rows] for name in ("queued", "first_token", "finished"))
    totals = {
        "time_to_first_token_seconds": sum(first),
        "inter_token_latency_seconds": sum(last) - sum(first),
        "request_time_per_output_token_seconds": (sum(last) - sum(first)) / 19,
        "request_queue_time_seconds": sum(queued),
        "request_prefill_time_seconds": sum(first) - sum(queued),
        "request_decode_time_seconds": sum(last) - sum(first),
        "request_inference_time_seconds": sum(last) - sum(queued),
        "request_generation_tokens": 6000,
        "request_prompt_tokens": sum(row["usage"]["prompt_tokens"] for row in rows),
    }
    of = {"model_name": EMBEDDED_MODEL, "source": "job"}
    assert {name: seen.total(f"{name}_sum", **of) for name in totals} == pytest.approx(totals)
    assert seen.total("e2e_request_latency_seconds_sum", **of) >= sum(last)
    counts = {name: seen.total(f"{name}_count", **of) for name in [*totals, "e2e_request_latency_seconds"]}
    assert counts.pop("inter_token_latency_seconds") == 300 * 19
    assert set(counts.values()) == {len(rows)} == {300}
    for name in counts:
        assert seen.total(f"{name}_bucket", le="+Inf", **of) == 300
    within = sum(each <= 0.25 for each in first)
    assert seen.total("time_to_first_token_seconds_bucket", le="0.25", **of) == within
    assert seen.total("request_success_total", finished_reason="length", **of) == 300


@pytest.mark.usefixtures("runtime")
def test_constraints_are_counted_as_they_are_compiled_and_found_again(run: Callable[..., None], tmp_path: Path) -> None:
    rows = [{"prompt": "a", "constraint": {"regex": ("yes|no", "[0-9]{2}")[number % 2]}} for number in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with metrics() as (_, url):
        run("--linger=300", "--input", f"{tmp_path}/a.jsonl")
        seen = eventually(lambda: up(url))
    assert seen.total("job_rows_done_total") == 300 + 30
    assert seen.total("grammar_compilations_total", model_name=EMBEDDED_MODEL) == 2
    assert seen.total("grammar_cache_hits_total", model_name=EMBEDDED_MODEL) == 28
    assert seen.total("grammar_compilation_seconds_total", model_name=EMBEDDED_MODEL) > 0


@pytest.mark.usefixtures("runtime")
def test_dead_letters_are_counted_by_class_whether_or_not_the_manager_saw_the_row(
    run: Callable[..., None], tmp_path: Path
) -> None:
    rows = [{"prompt": "a", "max_tokens": -1}, {"prompt": "a " * 40_000}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"prompt": \n')
    dead = {"InvalidRequest": 1, "PromptTooLong": 1, "UnreadableRow": 1}
    with metrics() as (_, url):
        with looked(url) as scrapes:
            run("--linger=300", "--input", f"{tmp_path}/a.jsonl", step=0.05)
        last = eventually(lambda: up(url))
    assert {error: last.total("job_dead_letters_total", error=error) for error in dead} == dead
    assert last.total("job_rows_failed_total") == last.total("job_dead_letters_total") == 3
    totals = [each.total("job_rows_failed_total") for each in scrapes if each.total("up") == 1]
    assert totals == sorted(totals)


def test_scrapes_do_not_keep_a_manager_alive(runtime: Path) -> None:
    model, soon = ModelConfig(model=EMBEDDED_MODEL, backend="fake"), ManagerConfig(linger=0.1)
    with metrics() as (_, url), looked(url) as scrapes:
        with EngineClient.open(model, manager=soon):
            eventually(lambda: scrapes[-1].total("up") == 1)
        eventually(lambda: scrapes[-1].total("up") == 0 and status_of(runtime) is None)


def test_a_manager_that_hangs_or_is_killed_is_down_until_it_goes_on_or_the_next_one_is_there(
    runtime: Path, run: Callable[..., None]
) -> None:
    with metrics() as (_, url):
        assert scraped(url).total("up") == 0, "before the first job"
        run("--linger=300")
        eventually(lambda: scraped(url).total("job_rows_done_total") == 300)
        status = status_of(runtime)
        assert status is not None
        with stopped(status.pid):
            assert scraped(url).total("up") == 0
        eventually(lambda: scraped(url).total("job_rows_done_total") == 300)
        os.kill(status.pid, signal.SIGKILL)
        eventually(lambda: scraped(url).total("up") == 0)
        run("--linger=300")
        eventually(lambda: up(url))


def test_a_killed_engine_is_a_restart_and_its_rows_are_done_all_the_same(
    runtime: Path, run: Callable[..., None]
) -> None:
    def kill() -> None:
        status: Status = eventually(lambda: in_the_middle(runtime))
        os.kill(status.models[0].pids[0], signal.SIGKILL)

    with metrics() as (_, url), ThreadPoolExecutor(1) as pool:
        with looked(url) as scrapes:
            killed = pool.submit(kill)
            run("--linger=300", step=0.05)
            killed.result()
        seen = eventually(lambda: up(url))
    never_falls([*scrapes, seen])
    assert seen.total("engine_restarts_total") == 1
    assert seen.total("e2e_request_latency_seconds_count", source="job") == 300
    assert (seen.total("job_rows_done_total"), seen.total("job_rows_failed_total")) == (300, 0)


def in_the_middle(runtime: Path) -> Status | None:
    """What the manager says, once a job has finished some of its rows."""
    status = status_of(runtime)
    return status if status and any(job.finished for job in status.jobs) else None


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
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = str(listening.getsockname()[1])
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

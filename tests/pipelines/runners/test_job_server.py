"""Jobs that name a job server, up to where it would run them."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from millrace.model_manager.wire.errors import ConfigError, RunnerLost
from millrace.pipelines.cli import dispatch
from millrace.pipelines.edge import at_the_edge
from millrace.pipelines.flags.job_options import parse
from millrace.pipelines.job.run import run_job
from millrace.pipelines.runners import job_server
from millrace.pipelines.runners.job_server import hint_at_workers, losses_told, runs_on_flink
from tests.pipelines.refusals import Refused
from tests.servers.job_service import FLINKS, job_service
from tests.servers.processes import free_port

PORTABLE = ("--runner", "PortableRunner")


def asked(*flags: str) -> bool:
    return runs_on_flink(PipelineOptions(list(flags)))


def files(folder: Path) -> list[str]:
    (folder / "p.jsonl").write_text('{"prompt": "x"}')
    return ["--input", str(folder / "p.jsonl"), "--output", str(folder / "c"), "--backend", "fake"]


def of_a_topic(folder: Path) -> list[str]:
    return ["--input", "kafka:localhost:1/t", "--output", str(folder / "c"), "--backend", "fake"]


@pytest.mark.parametrize("runner", ["PortableRunner", "FlinkRunner", "PrismRunner"])
def test_a_job_server_that_is_not_there_ends_the_job_before_it_starts(
    runner: str, tmp_path: Path, refused: Refused
) -> None:
    nowhere = f"localhost:{free_port()}"
    told = refused.run(*files(tmp_path), "--runner", runner, "--job_endpoint", nowhere)
    assert told.startswith(f"millrace: --job_endpoint {nowhere}: no job server at {nowhere} (Connection refused")


def test_what_accepts_connections_and_says_nothing_is_no_job_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_server, "_CONNECT_MS", 200)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"no job server at {endpoint} \(connection attempt timed out"):
            asked(*PORTABLE, f"--job_endpoint={endpoint}")


def test_a_runner_for_job_servers_takes_the_name_of_one(tmp_path: Path, refused: Refused) -> None:
    told = refused.run(*files(tmp_path), *PORTABLE)
    assert told.startswith("millrace: --job_endpoint is missing: --runner PortableRunner takes ")


def test_a_job_server_says_whether_it_is_flinks() -> None:
    with job_service(*FLINKS) as flinks, job_service() as another:
        assert asked(*PORTABLE, f"--job_endpoint={flinks}")
        assert not asked(*PORTABLE, f"--job_endpoint={another}")
    assert asked("--runner=FlinkRunner")
    assert not asked(*PORTABLE, "--job_endpoint=embed")
    assert not asked()


def test_a_brokers_job_without_checkpoints_is_refused_where_the_job_server_is_flinks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with job_service(*FLINKS) as endpoint:
        there = [*PORTABLE, f"--job_endpoint={endpoint}", "--environment_type=LOOPBACK"]
        assert dispatch(["run", *of_a_topic(tmp_path), *there]) == 2
        assert "--checkpointing_interval is missing" in capsys.readouterr().err
        assert dispatch(["run", *files(tmp_path), *there]) == 1, "files need none"
        assert "takes no job" in capsys.readouterr().err


def test_an_interrupt_while_a_job_is_submitted_says_that_its_runner_may_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with job_service(on_prepare=lambda: os.kill(os.getpid(), signal.SIGINT)) as endpoint:
        there = [*PORTABLE, f"--job_endpoint={endpoint}", "--environment_type=LOOPBACK"]
        assert dispatch(["run", "--quiet", *files(tmp_path), *there]) == 130
    assert capsys.readouterr().err == (
        "millrace: interrupted; the job was being submitted: if its runner has it, cancel it there\n"
    )


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_before_that_says_that_nothing_was_submitted(
    by: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(_pipeline: beam.Pipeline, _options: Any) -> None:
        os.kill(os.getpid(), by)

    with job_service() as endpoint:
        options = parse([*files(tmp_path), *PORTABLE, f"--job_endpoint={endpoint}", "--quiet"])
        assert at_the_edge(lambda: run_job(options, build)) == 130
    assert capsys.readouterr().err == "millrace: interrupted; nothing was submitted\n"


REFUSED = "failed in state FAILED: java.net.ConnectException: finishConnect(..) failed: Connection refused"


@pytest.mark.parametrize(
    ("environment", "failure", "is_hinted"),
    [
        ("EXTERNAL", REFUSED, True),
        ("EXTERNAL", "java.net.UnknownHostException: workers", True),
        ("EXTERNAL", "io.grpc.StatusRuntimeException: UNAVAILABLE: io exception", True),
        ("EXTERNAL", "java.lang.OutOfMemoryError", False),
        ("PROCESS", REFUSED, False),
    ],
)
def test_a_failure_that_may_be_the_worker_pools_says_where_it_was_looked_for(
    environment: str, failure: str, is_hinted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = PipelineOptions([f"--environment_type={environment}", "--environment_config=workers:50009"])

    def job() -> int:
        with hint_at_workers(options):
            raise RuntimeError(failure)

    assert at_the_edge(job) == 1
    told = capsys.readouterr().err
    assert failure.rsplit(": ", 1)[-1] in told
    assert ("if that was the worker pool, --environment_config workers:50009 does not" in told) == is_hinted


def test_a_job_that_fails_at_its_runner_gets_that_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with job_service(refusal=REFUSED) as endpoint:
        there = [*PORTABLE, f"--job_endpoint={endpoint}", "--environment_type=EXTERNAL", "--environment_config=w:1"]
        assert dispatch(["run", *files(tmp_path), *there]) == 1
    assert "--environment_config w:1 does not name one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "is_lost"),
    [
        ("Pipeline p failed in state FAILED: java.net.ConnectException: Connection refused", True),
        ("FlinkJobNotFoundException: Could not find Flink job (ab12)", True),
        (REFUSED, False),
    ],
)
def test_a_lost_job_manager_is_told_from_workers_that_are_not_reached(failure: str, is_lost: bool) -> None:
    with pytest.raises(RunnerLost if is_lost else RuntimeError), losses_told(PipelineOptions([]), "job p", "…"):
        raise RuntimeError(failure)


def test_a_job_server_whose_jar_is_not_got_gets_a_hint_at_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    def job() -> int:
        with hint_at_workers(PipelineOptions(["--runner", "FlinkRunner"])):
            raise RuntimeError("https://repo/beam-runners-flink-job-server.jar: 404")

    assert at_the_edge(job) == 1
    assert "docs/tutorials/flink.md" in capsys.readouterr().err

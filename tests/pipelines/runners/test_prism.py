"""Jobs on Prism, and on other job servers."""

import contextlib
import json
import tempfile
from pathlib import Path

import apache_beam as beam
import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from millrace import Generate, ModelConfig, SamplingParams
from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.commands.job_commands import generate as main
from millrace.pipelines.runners.prism import OwnPrism
from millrace.transforms import runners
from millrace.transforms.models.stand_in import StandInClient
from tests.servers.prism import prism, prism_server
from tests.servers.processes import listening


def test_a_prism_that_could_not_be_started_can_be_closed(tmp_path: Path) -> None:
    own = OwnPrism()
    server = own.default_job_server(PipelineOptions(["--prism_location", str(tmp_path / "none")]))
    with pytest.raises(ConfigError, match="build one with"):
        server.start()
    own.close()


@pytest.mark.runners
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Beam leaves a pipe of Prism's open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_other_machine_reaches_prism() -> None:
    own = OwnPrism()
    before = set(psutil.Process().children(recursive=True))
    with contextlib.closing(own):
        own.default_job_server(PipelineOptions([f"--prism_location={prism()}"])).start()
        started = set(psutil.Process().children(recursive=True)) - before
        opened = {host for process in started for host, _ in listening(process.pid)}
    assert opened == {"127.0.0.1"}
    assert psutil.wait_procs(started, timeout=60)[1] == []


@pytest.mark.runners
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("is_own", [True, False])
def test_a_job_of_files_lasts_as_long_as_it_takes(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not only for the seconds that Beam gives the job server for an answer: 15 here, and the job takes 17."""
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "1.0")
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "x"}')
    job = ["--input", str(tmp_path / "p.jsonl"), "--output", str(tmp_path / "c"), "--backend=fake", "--max_tokens=17"]
    job += ["--linger=0.1", "--orphan_grace=0.1", "--job_server_timeout=15"]
    if is_own:
        assert main([*job, "--runner=PrismRunner", f"--prism_location={prism()}"]) == 0
    else:
        with prism_server(tmp_path) as endpoint:
            elsewhere = ["--runner=PortableRunner", f"--job_endpoint={endpoint}", "--environment_type=LOOPBACK"]
            assert main([*job, *elsewhere]) == 0
    (written,) = tmp_path.glob("c-*.jsonl")
    assert json.loads(written.read_text())["usage"]["completion_tokens"] == 17
    assert list(temporary.iterdir()) == [], "Beam's own too"
    shown = capsys.readouterr()
    assert "the job's state: DONE" in shown.out
    told = [line for line in shown.err.splitlines() if line.startswith("job ")]
    if is_own:
        assert told == []
        return
    first, *states = told
    identity = first.removeprefix("job ").partition(":")[0]
    assert first == f"job {identity}: submitted to the job server at {endpoint}; cancel it at its runner"
    assert f"job {identity}: RUNNING" in states


@pytest.mark.runners
@pytest.mark.usefixtures("runtime")
def test_a_program_s_job_on_prism_outlasts_the_job_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam's 300 s are 15 here, and the job takes 17."""
    monkeypatch.setattr(runners, "_JOB_SERVER_TIMEOUT", 15)
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "1.0")
    options = PipelineOptions(["--runner=PrismRunner", f"--prism_location={prism()}", "--job_server_timeout=15"])
    generate = Generate(ModelConfig(model="millrace-tiny", backend="fake"), SamplingParams(max_tokens=17))
    with beam.Pipeline(options=options) as pipeline:
        counts = pipeline | beam.Create(["x"]) | generate | beam.Map(lambda answer: answer.usage.completion_tokens)
        assert_that(counts, equal_to([17]))


@pytest.mark.runners
def test_the_runner_that_beam_chooses_tells_a_failed_prompt_and_runs_the_job_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a name Beam takes Prism, and its local runner for a job that has failed at once."""
    caplog.set_level("INFO", "apache_beam.runners.direct.direct_runner")
    options = PipelineOptions([f"--prism_location={prism()}"])
    with (
        pytest.raises(Exception, match=r"prompt p: .*`\.with_exception_handling\(\)`"),
        beam.Pipeline(options=options) as p,
    ):
        _ = p | beam.Create([{"id": "p", "prompt": ""}]) | Generate("m", open_client=StandInClient)
    assert [each.message for each in caplog.records if "direct_runner" in each.name] == [
        "Running pipeline with PrismRunner."
    ]

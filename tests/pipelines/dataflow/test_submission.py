"""The whole way to Dataflow: the command in a process of its own, against servers of this machine that record it.

Cloud Storage is an emulator, Dataflow's and the token's services are tests/servers/dataflow.py; credentials are a
service account's, which only those know. What was submitted is run by Beam's local runner; what Dataflow would make of
it is not tested here.
"""

import base64
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from gcp_storage_emulator.server import create_server  # type: ignore[import-untyped, unused-ignore]
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage  # type: ignore[import-untyped]

from tests.job_commands import NO_PIP_FREEZE
from tests.pipelines.clean_environments import clean_environment, install
from tests.servers import dataflow

pytestmark = pytest.mark.slow

BUCKET = "millrace-test"
FILES = f"gs://{BUCKET}/in/*.jsonl"
BATCH, STREAM = 1, 2
"""Types of jobs, in Dataflow's interface."""
ROOT = Path(__file__).parents[3]
HINTS = {name: getattr(common_urns.resource_hints, name).urn for name in ("ACCELERATOR", "MIN_RAM_BYTES")}
SECRETS = ("hf_a-secret-of-the-hub", dataflow.TOKEN, "PRIVATE KEY")
COMMAND = ("-c", "from millrace.pipelines.cli import main; main()")
LAUNCHED = (str(ROOT / "deploy/dataflow/flex_template.py"),)
RUNS_THE_GRAPH = """
import sys
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
options = PipelineOptions(["--project=a-project"])
FileSystems.set_options(options)
with open(sys.argv[1], "rb") as file:
    graph = beam_runner_api_pb2.Pipeline.FromString(file.read())
for environment in graph.components.environments.values():
    environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
    del environment.dependencies[:]
FnApiRunner().run_via_runner_api(graph, options).wait_until_finish()
"""


@pytest.fixture
def service() -> Iterator[dataflow.DataflowService]:
    with dataflow.serve() as service:
        yield service


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A bucket with one file of prompts."""
    server = create_server("localhost", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    endpoint = f"http://localhost:{server._api._httpd.server_port}"
    client = storage.Client("a-project", AnonymousCredentials(), client_options={"api_endpoint": endpoint})  # type: ignore[no-untyped-call]
    try:
        bucket = client.bucket(BUCKET)
        bucket.endpoint = endpoint
        bucket.blob("in/a.jsonl").upload_from_string('"one"\n"two"\n')
        yield bucket
    finally:
        client.close()
        server.stop()


class Submit:
    """The command, whose only network is this machine's."""

    def __init__(self, endpoint: str, environment: dict[str, str], folder: Path) -> None:
        self._endpoint = endpoint
        self._folder = folder
        self.environment = environment

    def __call__(
        self, *flags: str, program: Sequence[str] = (*COMMAND, "run"), source: str = FILES, **more: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(*flags, program=program, source=source)
        with self.started(command, more) as process:
            shown, told = process.communicate(timeout=240)
        return subprocess.CompletedProcess(command, process.returncode, shown, told)

    def started(self, command: list[str], more: dict[str, str]) -> subprocess.Popen[str]:
        environment = self.environment | {"PYTHONPATH": str(ROOT)} | more
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self._folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def command(self, *flags: str, program: Sequence[str] = (*COMMAND, "run"), source: str = FILES) -> list[str]:
        job = [f"--input={source}", f"--output=gs://{BUCKET}/out/c", "--runner=DataflowRunner"]
        cloud = ["--project=a-project", "--region=us-central1", f"--temp_location=gs://{BUCKET}/tmp", NO_PIP_FREEZE]
        return [sys.executable, *program, *job, *cloud, f"--dataflow_endpoint={self._endpoint}", *flags]


@pytest.fixture
def submit(service: dataflow.DataflowService, bucket: Any, tmp_path: Path) -> Submit:
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {
        "TMPDIR": str(tmp_path / "tmp"),
        "STORAGE_EMULATOR_HOST": bucket.endpoint,
        "GOOGLE_APPLICATION_CREDENTIALS": str(dataflow.service_account(tmp_path, service)),
        "HF_TOKEN": SECRETS[0],
        "HF_HUB_OFFLINE": "1",
        "MILLRACE_RUNTIME_DIR": str(tmp_path / "rt"),
        "no_proxy": "localhost",
    }
    return Submit(service.endpoint, environment, tmp_path)


def staged(bucket: Any) -> dict[str, bytes]:
    """What was uploaded, by the files' own names."""
    blobs = bucket.client.list_blobs(BUCKET, prefix="tmp/")
    return {unquote(blob.name).rsplit("/", 1)[-1]: blob.download_as_bytes() for blob in blobs}


def graph(bucket: Any) -> Any:
    return beam_runner_api_pb2.Pipeline.FromString(staged(bucket)["pipeline.pb"])


def hints_by_step(pipeline: Any) -> dict[str, dict[str, bytes]]:
    """The hints of the environment of each step that has code."""
    components = pipeline.components
    return {
        step.unique_name: dict(components.environments[step.environment_id].resource_hints)
        for step in components.transforms.values()
        if step.environment_id and not step.subtransforms
    }


def test_a_job_is_submitted_with_its_package_its_options_and_hints_on_the_models_step_alone(
    submit: Submit, service: dataflow.DataflowService, bucket: Any, tmp_path: Path
) -> None:
    ended = submit("--gpu=l4", "--max_num_workers=4", "--job_name=a-job", "--labels=team=a")
    assert ended.returncode == 0, ended.stderr
    assert "console.cloud.google.com/dataflow/jobs/us-central1/job-1?project=a-project" in ended.stdout
    assert "the job's state: DONE" in ended.stdout
    assert "1 × nvidia-l4 with driver on g2-standard-8" in ended.stderr

    (job,) = service.jobs
    environment, pool = job["environment"], job["environment"]["workerPools"][0]
    assert (job["name"], job["type"], job["labels"]) == ("a-job", BATCH, {"team": "a"})
    assert pool["machineType"] == "n2-standard-2"
    assert pool["diskSizeGb"] == 60
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 4
    assert pool["numThreadsPerWorker"] == 4
    assert {"use_runner_v2", "no_use_multiple_sdk_containers"} <= set(environment["experiments"])
    assert "use_multiple_sdk_containers" not in environment["experiments"]
    assert not any("worker_accelerator" in option for option in environment.get("serviceOptions", []))
    images = {image["containerImage"] for image in pool["sdkHarnessContainerImages"]}
    assert len(images) == 1
    assert "beam_python3." in images.pop()

    hints = hints_by_step(graph(bucket))
    hinted = {name for name, found in hints.items() if found}
    assert hinted
    assert all(name.startswith("Generate/") for name in hinted)
    assert len(hints) > len(hinted)
    for name in hinted:
        assert hints[name] == {
            HINTS["ACCELERATOR"]: b"type:nvidia-l4;count:1;machine_type:g2-standard-8;install-nvidia-driver:5xx",
            HINTS["MIN_RAM_BYTES"]: b"9000000000",
        }

    files = staged(bucket)
    with tarfile.open(fileobj=io.BytesIO(files["workflow.tar.gz"])) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    ours = ("transforms/generate.py", "model_manager/engine/engine.py", "pipelines/cli.py")
    assert {"setup.py", *(f"millrace/{path}" for path in ours)} <= names
    assert {
        f"millrace/model_manager/store/embedded/millrace-tiny/{name}"
        for name in ("model.safetensors", "tokenizer.json")
    } <= names
    assert not any(name.startswith(("tests/", "benchmarks/", ".git")) for name in names)

    sent = json.dumps(service.jobs).encode() + b"".join(files.values())
    for secret in SECRETS:
        for form in (secret.encode(), base64.b64encode(secret.encode())):
            assert form not in sent
    assert not (tmp_path / "rt").exists(), "no model is loaded here"
    assert list((tmp_path / "tmp").rglob("*")) == [], "nothing is left behind"


def test_what_was_submitted_runs_with_nothing_but_what_was_staged(submit: Submit, bucket: Any, tmp_path: Path) -> None:
    ended = submit("--backend=fake", "--linger=0.5", "--max_tokens=3", "--quiet")
    assert ended.returncode == 0, ended.stderr
    files = staged(bucket)
    for name in ("pipeline.pb", "workflow.tar.gz"):
        (tmp_path / name).write_bytes(files[name])
    python = clean_environment(tmp_path / "worker")
    install(python, tmp_path / "workflow.tar.gz")
    command = [str(python), "-I", "-c", RUNS_THE_GRAPH, str(tmp_path / "pipeline.pb")]
    ran = subprocess.run(
        command, cwd=tmp_path, env=submit.environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    (output,) = bucket.client.list_blobs(BUCKET, prefix="out/c-")
    rows = [json.loads(line) for line in output.download_as_text().splitlines()]
    assert sorted(row["id"] for row in rows) == [f"gs://{BUCKET}/in/a.jsonl@0", f"gs://{BUCKET}/in/a.jsonl@6"]
    assert {row["usage"]["completion_tokens"] for row in rows} == {3}


@pytest.mark.parametrize(
    "source",
    ["pubsub:projects/a-project/subscriptions/prompts", "kafka:broker:9092/t", f"watch:gs://{BUCKET}/in/*.jsonl"],
)
def test_a_stream_is_a_streaming_job_whose_models_step_has_a_pool_of_its_own_too(
    submit: Submit, service: dataflow.DataflowService, bucket: Any, source: str
) -> None:
    ended = submit("--gpu=l4", "--sdk_container_image=i/millrace:1", source=source)
    assert ended.returncode == 0, ended.stderr
    (job,) = service.jobs
    assert job["type"] == STREAM
    experiments = job["environment"]["experiments"]
    assert {"enable_streaming_rightfitting", "enable_streaming_engine"} <= set(experiments)
    hinted = {name for name, found in hints_by_step(graph(bucket)).items() if found}
    assert hinted
    assert all(name.startswith("Generate/") for name in hinted)


def test_an_image_that_has_the_package_gets_none_and_its_models_need_not_be_here(
    submit: Submit, service: dataflow.DataflowService, bucket: Any
) -> None:
    image = "us-docker.pkg.dev/a-project/r/millrace:1"
    ended = submit(f"--sdk_container_image={image}", "--model=/opt/models/m", "--quiet")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    pool = service.jobs[0]["environment"]["workerPools"][0]
    assert {each["containerImage"] for each in pool["sdkHarnessContainerImages"]} == {image}
    assert pool["machineType"] == "n2-highmem-8"
    assert pool["diskSizeGb"] == 90
    assert set(staged(bucket)) == {"pipeline.pb"}
    assert not any(hints_by_step(graph(bucket)).values())


def test_a_model_in_a_bucket_is_measured_before_machines_are_chosen(
    submit: Submit, service: dataflow.DataflowService, bucket: Any
) -> None:
    bucket.blob("models/m/model.safetensors").upload_from_string(b"x" * 300_000)
    bucket.blob("models/m/consolidated.safetensors").upload_from_string(b"x" * 900_000)
    bucket.blob("models/m/config.json").upload_from_string(b"{}")
    image = "--sdk_container_image=i/millrace:1"
    ended = submit(image, f"--model=gs://{BUCKET}/models/m", program=(*COMMAND, "embed"))
    assert ended.returncode == 0, ended.stderr
    assert "weights        0.3 MB" in ended.stderr
    assert service.jobs[0]["environment"]["workerPools"][0]["diskSizeGb"] == 60
    ended = submit(f"--model=gs://{BUCKET}/models/none", program=(*COMMAND, "score"))
    assert ended.returncode == 2
    assert f"--model gs://{BUCKET}/models/none: there are no .safetensors files" in ended.stderr
    assert len(service.jobs) == 1


@pytest.mark.parametrize("where", ["gs", "local"])
def test_a_classic_template_is_the_job_in_a_file_and_nothing_is_submitted(
    submit: Submit, service: dataflow.DataflowService, bucket: Any, tmp_path: Path, where: str
) -> None:
    location = f"gs://{BUCKET}/templates/run" if where == "gs" else str(tmp_path / "template.json")
    ended = submit(f"--template_location={location}", "--gpu=t4", "--sdk_container_image=i/millrace:1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"template: {location}\n"
    assert service.jobs == []
    text = bucket.blob("templates/run").download_as_text() if where == "gs" else Path(location).read_text()
    template = json.loads(text)
    options = template["environment"]["sdkPipelineOptions"]["options"]
    assert options["pipelineUrl"].startswith(f"gs://{BUCKET}/tmp/")
    assert "no_use_multiple_sdk_containers" in template["environment"]["experiments"]
    assert any(b"nvidia-tesla-t4" in hint for found in hints_by_step(graph(bucket)).values() for hint in found.values())
    for secret in SECRETS:
        assert secret not in text


def test_a_flex_templates_launcher_gets_the_job_that_its_parameters_describe(
    submit: Submit, service: dataflow.DataflowService, bucket: Any
) -> None:
    location = f"gs://{BUCKET}/launches/1/job_object"
    parameters = ["--command=score", "--overwrite=true", "--row_params=false", "--gpu=l4:2", "--max_num_seqs=7"]
    launcher = [f"--template_location={location}", "--sdk_container_image=i/millrace:1", "--num_workers=2"]
    ended = submit(*parameters, *launcher, program=LAUNCHED, FLEX_TEMPLATE_PYTHON_PY_FILE=LAUNCHED[0])
    assert ended.returncode == 0, ended.stderr
    assert service.jobs == []
    job = json.loads(bucket.blob("launches/1/job_object").download_as_text())
    assert job["environment"]["workerPools"][0]["numWorkers"] == 2
    hinted = {name: found for name, found in hints_by_step(graph(bucket)).items() if found}
    assert hinted
    assert all(name.startswith("Score/") for name in hinted)
    assert all(found[HINTS["ACCELERATOR"]].startswith(b"type:nvidia-l4;count:2;") for found in hinted.values())


def test_an_interrupt_ends_the_waiting_and_not_the_job(submit: Submit, service: dataflow.DataflowService) -> None:
    service.states = ["JOB_STATE_RUNNING"]
    with submit.started(submit.command("--sdk_container_image=i/millrace:1"), {}) as process:
        assert process.stdout is not None
        submitted = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    console = submitted.removeprefix("submitted: ").strip()
    assert told.splitlines()[-1] == f"millrace: interrupted; the job goes on, and can be cancelled at {console}"
    assert {exchange.method for exchange in service.exchanges if "/jobs" in exchange.path} <= {"GET", "POST"}
    assert len(service.jobs) == 1


def test_a_job_that_fails_there_is_told_in_the_one_sentence_that_a_worker_ended_with(
    submit: Submit, service: dataflow.DataflowService
) -> None:
    reason = "ModelDoesNotFit: --model org/m: 80.0 GB of weights, 24.0 GB of memory"
    trace = f'Traceback (most recent call last):\n  File "x.py", line 1\nmillrace.model_manager.wire.errors.{reason}\n'
    importance = "JOB_MESSAGE_ERROR"
    service.messages = [
        {"id": "1", "time": "2026-01-01T00:00:00Z", "messageImportance": importance, "messageText": trace},
    ]
    service.states = ["JOB_STATE_RUNNING"] * 3 + ["JOB_STATE_FAILED"]
    ended = submit("--sdk_container_image=i/millrace:1", "--quiet")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr == f"millrace: {reason.partition(': ')[2]}\n"

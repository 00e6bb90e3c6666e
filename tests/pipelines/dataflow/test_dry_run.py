"""Checks before anything is submitted; the submission itself is in test_submission.py."""

import socket
from pathlib import Path
from typing import Any

import pytest

from millrace.pipelines.commands.job_commands import classify, embed, extract, generate, score
from tests.pipelines.refusals import Refused

IMAGE = "--sdk_container_image=us-docker.pkg.dev/a-project/r/millrace:1"
CLOUD = ["--project=a-project", "--region=us-central1", "--temp_location=gs://a-bucket/tmp"]
PLACES = ["--input", "gs://a-bucket/in/*.jsonl", "--output", "gs://a-bucket/out/c"]
JOB = [*PLACES, "--runner=DataflowRunner"]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("the network is used")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("main", [generate, score, embed])
def test_a_dry_run_shows_what_would_be_submitted(main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, *CLOUD, "--dry_run", "--gpu", "l4", "--max_num_workers", "8"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert "Dataflow job in project a-project, region us-central1, not submitted: this is a dry run" in lines[0]
    told = " ".join(shown.err.split())
    for expected in (
        "model millrace-tiny, the small demo model: --model names yours",
        "weights 5.5 MB",
        f"package built from {Path(__file__).parents[3]}/setup.py",
        "the model's step 1 × nvidia-l4 with driver on g2-standard-8, 9 GB of memory or more",
        "other steps n2-standard-2",
        "SDK processes one a worker (no_use_multiple_sdk_containers), 4 threads",
        "disk 60 GB a worker",
        "at most 8",
    ):
        assert expected in told


@pytest.mark.usefixtures("no_network")
def test_what_is_asked_about_documents_is_looked_at_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text('{"type": "object", "properties": {"a": {"type": "string"}}}')
    assert extract([*JOB, *CLOUD, "--dry_run", "--schema", f"{tmp_path}/s.json"]) == 0
    assert classify([*JOB, *CLOUD, "--dry_run", "--labels", "a,b"]) == 0
    assert capsys.readouterr().err.count("not submitted: this is a dry run") == 2
    assert extract([*JOB, *CLOUD, "--dry_run", "--schema", "none.json"]) == 2


@pytest.mark.usefixtures("no_network")
def test_a_dry_run_does_not_ask_how_large_a_remote_model_is(capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("org/name", "gs://a-bucket/model"):
        assert generate([*JOB, *CLOUD, "--dry_run", "--model", model]) == 0
        told = capsys.readouterr().err
        assert "a dry run asks no network how large the model is" in told
        assert "demo model" not in told


@pytest.mark.usefixtures("no_network")
def test_a_model_behind_servers_needs_no_files_on_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate([*JOB, *CLOUD, "--dry_run", "--model", "gpt-4o", "--endpoint", "https://a"]) == 0
    told = capsys.readouterr().err
    assert "workers fetch no model: the back end endpoint names it to servers" in told


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (JOB, "project, region, temp_location missing; add --project PROJECT --region us-central1 --temp_location gs:"),
        ([*JOB, *CLOUD[:2]], "temp_location missing; add --temp_location gs://bucket/folder"),
        ([*JOB, *CLOUD[:2], "--temp_location=/tmp/x"], "--temp_location /tmp/x: takes gs://bucket/folder"),
        (["--input", "a.jsonl", *JOB, *CLOUD], "/a.jsonl: workers do not see this machine's files"),
        (["--input", "watch:/a/*.jsonl", *JOB[2:], *CLOUD], "--input watch:/a/*.jsonl: workers do not see"),
        ([*JOB[:2], *JOB[4:], *CLOUD], "/out/completions: workers do not see this machine's files"),
        ([*JOB, *CLOUD, "--model", "/models/m"], "--model /models/m: workers do not see this machine's folders"),
        ([*JOB, *CLOUD, "--dead_letters", "out/d"], "/out/d: workers do not see this machine's files"),
        ([*JOB, *CLOUD, "--model_updates", "watch:/a"], "--model_updates watch:/a: workers do not see this machine's"),
        ([*JOB, *CLOUD, "--gpu", "k80"], "--gpu k80: takes none, l4"),
        ([*JOB, *CLOUD, "--template_location=gs://a-bucket/t", "--overwrite"], "leave --overwrite out"),
        (["--input", "kafka:b:1/t", *JOB[2:], *CLOUD, "--template_location=gs://a-bucket/t"], "use the Flex Template"),
        ([*JOB, *CLOUD, "--backend", "vllm", "--gpu", "l4"], "with --build-arg ENGINE=vllm"),
        ([*JOB, *CLOUD, "--backend", "openvino"], "--backend openvino: --sdk_container_image is missing"),
        ([*JOB, *CLOUD, "--server_command", "serve {port}"], "--backend server: --sdk_container_image is missing"),
        ([*JOB, *CLOUD, "--backend", "vllm", IMAGE, "--dry_run"], "--backend vllm: takes --gpu, such as --gpu l4"),
        (
            [*JOB, *CLOUD, "--endpoint", "https://a", "--gpu", "l4", "--dry_run"],
            "the back end endpoint uses no NVIDIA GPU",
        ),
        ([*PLACES, "--gpu", "l4"], "--gpu needs --runner DataflowRunner"),
        ([*PLACES, "--dry_run"], "--dry_run needs --runner DataflowRunner"),
    ],
)
def test_what_is_missing_or_cannot_be_is_one_sentence_before_anything_is_built(
    flags: list[str], told: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLOUDSDK_COMPUTE_REGION", raising=False)
    assert told in refused.run(*flags)


def test_without_credentials_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    assert "no Google credentials are found" in refused.run(*JOB, *CLOUD)


@pytest.mark.usefixtures("no_network")
def test_the_region_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "europe-west4")
    assert generate([*JOB, CLOUD[0], CLOUD[2], "--dry_run"]) == 0
    assert "region europe-west4" in capsys.readouterr().err


@pytest.mark.usefixtures("no_network")
def test_another_engine_is_in_the_image_and_has_gpus_with_their_driver(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate([*JOB, *CLOUD, IMAGE, "--backend", "vllm", "--gpu", "l4", "--dry_run"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "engine vllm" in told
    assert "millrace:1, with the engine as --build-arg ENGINE=vllm puts it there" in told
    assert "the model's step 1 × nvidia-l4 with driver on g2-standard-8" in told
    gguf = ["--backend", "llama_cpp", "--model", "gs://a-bucket/models/m.gguf"]
    assert generate([*JOB, *CLOUD, IMAGE, *gguf, "--template_location=gs://a-bucket/t", "--dry_run"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "Dataflow template in project" in told
    assert "ENGINE=llama_cpp" in told


@pytest.mark.usefixtures("no_network")
def test_a_folder_of_the_image_is_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate([*JOB, *CLOUD, IMAGE, "--model", "/opt/models/m", "--dry_run"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "image us-docker.pkg.dev/a-project/r/millrace:1" in told
    assert "package the one in the image" in told
    assert "not known, taken to be 16 GB" in told

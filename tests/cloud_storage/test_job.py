"""The main job with prompts, weights and output on gs://, and real processes, while requests fail."""

import re
from pathlib import Path

import pytest

from millrace.model_manager.client.status import stop_models
from millrace.pipelines.cli import dispatch
from tests.cloud_storage.bucket import Bucket
from tests.cloud_storage.faults import CLOUD_STORAGE
from tests.model_manager.store.checkpoints import EMBEDDED
from tests.servers.fake_gcs import batches, beginnings, chunks, downloads, listings, looks
from tests.servers.faulty_http import Altered, Fault, Lost, Reset, Status, Truncated

pytestmark = CLOUD_STORAGE

FAULTS: list[Fault] = [Status(503), Reset(1000), Truncated(500, "part"), Altered(), Truncated(0, "part"), Lost()]


@pytest.fixture
def job(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Its flags; the bucket has what it reads."""
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
    model = bucket.upload(EMBEDDED, "models/tiny")
    bucket.put("in/a.jsonl", b'{"id": "mexico", "prompt": "What is the capital of Mexico?"}\nbad\n')
    bucket.put("in/b.jsonl", b'{"id": "peru", "prompt": "What is the capital of Peru?"}\n')
    output = f"{bucket.address}/out/c"
    flags = ["run", "--input", f"{bucket.address}/in/*.jsonl", "--model", model, "--output", output, "--project", "p"]
    return [*flags, "--quiet", "--linger", "0.5", "--max_tokens", "16"]


def test_a_job_is_right_through_all_of_it(bucket: Bucket, job: list[str], tmp_path: Path) -> None:
    rules = []
    for number, fault in enumerate(FAULTS):
        for matches in (downloads("models/"), downloads("in/")):
            rules.append(bucket.server.inject(fault, matches, after=2 * number))
    steps: list[Fault] = [Status(503), Lost(), Reset(10)]
    for number, fault in enumerate(steps):
        for matches in (beginnings("c"), chunks("c"), batches("copyTo"), batches("DELETE"), listings, looks("in/")):
            rules.append(bucket.server.inject(fault, matches, after=2 * number))
    try:
        assert dispatch(job) == 0
    finally:
        stop_models(tmp_path / "rt")
    assert {row["id"]: row["text"] for row in bucket.rows("out/c-")} == {"mexico": "Mexico City", "peru": "Lima"}
    assert [row["row"] for row in bucket.rows("out/c.dead_letters-")] == ["bad"]
    assert bucket.names("out/c.tmp") == []
    report = bucket.server.get(bucket.name, "out/c.report.html").decode()
    assert "What is the capital of Peru?" in report, "prompts of the bucket stand beside the answers of the bucket"
    looked = tmp_path / "page.html"
    assert dispatch(["view", f"{bucket.address}/out/c", "--output", str(looked)]) == 0
    assert {"Lima", "Mexico City", "UnreadableRow"} <= {*re.findall(r">([\w ]+)<", looked.read_text())}
    assert sum(rule.happened for rule in rules) > 15


@pytest.mark.parametrize("what", ["models/tiny/model.safetensors", "in/a.jsonl"])
def test_what_cannot_be_read_is_one_sentence(
    bucket: Bucket, job: list[str], what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bucket.inject_for_good(Status(503), downloads(what))
    try:
        assert dispatch(job) in (1, 2)
    finally:
        stop_models(tmp_path / "rt")
    said = capfd.readouterr().err
    assert said.startswith("millrace: ")
    assert what.rsplit("/", 1)[-1] in said
    assert said.count("\n") == 1
    assert bucket.names("out/c-") == []

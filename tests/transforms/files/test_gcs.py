"""The same on gs://, against an emulator of Google Cloud Storage."""

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.internal.gcp import auth
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from gcp_storage_emulator.server import create_server  # type: ignore[import-untyped, unused-ignore]
from google.auth.exceptions import DefaultCredentialsError

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.generate import Generate
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.reading.count import count_rows
from millrace.transforms.reading.read_prompts import ReadPrompts
from millrace.transforms.writing.resume import SkipCompleted
from millrace.transforms.writing.write_completions import WriteCompletions
from tests.transforms.running import pipeline

BUCKET = "gs://millrace-test"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket, reached without credentials."""
    timeout = socket.getdefaulttimeout()
    server = create_server("localhost", 0, in_memory=True, default_bucket=BUCKET.removeprefix("gs://"))
    server.start()

    def no_credentials(_options: Any) -> None:
        raise DefaultCredentialsError("none")  # type: ignore[no-untyped-call, unused-ignore]

    monkeypatch.setattr(auth._Credentials, "_get_credentials_with_retrys", staticmethod(no_credentials))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{server._api._httpd.server_port}")
    FileSystems.set_options(PipelineOptions(["--project=p"]))
    yield BUCKET
    server.stop()
    socket.setdefaulttimeout(timeout)  # Beam sets one for the whole process


def put(path: str, content: bytes) -> None:
    with FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        stream.write(content)


def lines(pattern: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for file in FileSystems.match([pattern])[0].metadata_list:
        with FileSystems.open(file.path) as stream:
            found += [json.loads(line) for line in stream]
    return found


def run(bucket: str, *, resume: bool = False) -> None:
    output = f"{bucket}/out/c"
    with pipeline("--project=p") as p:
        prompts, unreadable = p | ReadPrompts([f"{bucket}/in/*", f"{bucket}/more.txt.gz"]).with_exception_handling()
        todo = prompts | SkipCompleted(output) if resume else prompts
        completions = todo | Generate("m", open_client=StandInClient)
        _ = (completions, unreadable) | WriteCompletions(output, if_exists="resume" if resume else "refuse")


def test_prompts_come_from_a_bucket_and_completions_go_to_one(bucket: str) -> None:
    put(f"{bucket}/in/a.jsonl", b'"one"\nbad\n"two"\n')
    put(f"{bucket}/more.txt.gz", gzip.compress(b"three\n"))
    assert count_rows([f"{bucket}/in/*"]).rows == 3
    run(bucket)
    assert sorted(row["text"] for row in lines(f"{bucket}/out/c-*")) == ["ONE", "THREE", "TWO"]
    assert [row["row"] for row in lines(f"{bucket}/out/c.dead_letters-*")] == ["bad"]
    with pytest.raises(ConfigError, match="already there"):
        run(bucket)
    put(f"{bucket}/in/b.txt", b"four\n")
    run(bucket, resume=True)
    assert sorted(row["text"] for row in lines(f"{bucket}/out/c-*")) == ["FOUR", "ONE", "THREE", "TWO"]
    assert lines(f"{bucket}/out/c.tmp/**") == []


def test_a_bucket_without_such_files_is_told_before_the_run(bucket: str) -> None:
    with pytest.raises(ConfigError, match="no such file"), beam.Pipeline() as p:
        p | ReadPrompts(f"{bucket}/none/*.jsonl")

"""A watched bucket whose objects go, or change, before they are read: the stream goes on without them."""

import pytest
from apache_beam.io.filesystem import FileMetadata

from millrace.model_manager.wire.errors import ConfigError, StorageError
from millrace.pipelines.places.watched import check_place
from millrace.transforms.addresses import WatchedFiles
from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.reading.file_ranges import match_files
from millrace.transforms.reading.read_rows import MAX_ROW_BYTES
from millrace.transforms.streams.watch import WatchPrompts, _ReadRange, _Split
from tests.cloud_storage.bucket import Bucket
from tests.cloud_storage.faults import CLOUD_STORAGE
from tests.servers.fake_gcs import downloads
from tests.servers.faulty_http import Status
from tests.transforms.running import check, pipeline

pytestmark = CLOUD_STORAGE


def test_an_object_that_cannot_be_read_is_a_dead_letter_and_the_others_are_read(bucket: Bucket) -> None:
    lost = bucket.put("lost.jsonl", b'"one"\n')
    bucket.put("here.jsonl", b'"two"\n')
    bucket.inject_for_good(Status(404), downloads("lost.jsonl"))
    with pipeline("--project=p") as p:
        watched = WatchPrompts(f"{bucket.address}/*.jsonl", interval=0.2, stop_after=0.4)
        prompts, letters = p | watched.with_exception_handling()
        check(prompts, lambda found: [prompt.text for prompt in found] == ["two"], "prompts")
        check(letters, lambda found: [(row.source, lost in row.reason) for row in found] == [(lost, True)], "letters")


def test_a_bucket_that_is_not_there_is_told_before_the_job(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    check_place(WatchedFiles(f"{bucket.address}/in/*.jsonl"))
    assert "no such folder" not in caplog.text
    with pytest.raises(ConfigError, match=rf"^--input watch:{bucket.address}-not/\*: .*cannot be listed: .*404"):
        check_place(WatchedFiles(f"{bucket.address}-not/*"))


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_left_of_an_object_that_is_overwritten_meanwhile_is_a_dead_letter(bucket: Bucket, strict: bool) -> None:
    path = bucket.put("rows.jsonl", b'"a prompt"\n' * 20_000)
    (file,) = match_files([path])
    first, second, *_ = _Split(None, strict=strict).process(file)
    reader = _ReadRange(RowShape(), MAX_ROW_BYTES, strict=strict)
    assert all(isinstance(row, Prompt) for row in reader.process(first))
    bucket.put("rows.jsonl", b'"A PROMPT"\n' * 20_000)
    if strict:
        with pytest.raises(StorageError, match="overwritten"):
            list(reader.process(second))
        return
    (letter,) = (output.value for output in reader.process(second))
    assert isinstance(letter, DeadLetter)
    assert (letter.id, "overwritten" in letter.reason) == (path, True)


def test_an_object_that_is_gone_before_it_is_split_is_a_dead_letter(bucket: Bucket) -> None:
    gone = FileMetadata(f"{bucket.address}/gone.jsonl", 5, 0.0)
    with pytest.raises(StorageError):
        list(_Split(None, strict=True).process(gone))
    (output,) = _Split(None, strict=False).process(gone)
    assert output.value.source == gone.path

"""Output on gs:// while requests fail: every row once, or one sentence that names the object, and nothing half."""

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow.parquet as pq
import pytest

from millrace.model_manager.wire.errors import ConfigError, StorageError
from millrace.model_manager.wire.request import FinishReason
from millrace.pipelines.edge import unwrapped
from millrace.transforms.elements.completions import Completion, DeadLetter, Prompt
from millrace.transforms.generate import Generate
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.reading.read_prompts import ReadPrompts
from millrace.transforms.writing.output_files import IfExists
from millrace.transforms.writing.resume import SkipCompleted
from millrace.transforms.writing.write_completions import WriteCompletions
from tests.cloud_storage.bucket import Bucket
from tests.cloud_storage.faults import CLOUD_STORAGE
from tests.servers.fake_gcs import batches, beginnings, chunks, downloads, listings, looks, part_fails
from tests.servers.faulty_http import Altered, Fault, Lost, Request, Reset, Status, Truncated
from tests.transforms.running import pipeline

pytestmark = CLOUD_STORAGE

IDS = [f"r{number}" for number in range(50)]

COPIES, DELETES = batches("copyTo"), batches("DELETE")
REQUESTS: dict[str, Callable[[Request], bool]] = {
    "the beginning of an upload": beginnings("completions-"),
    "an upload's bytes": chunks("completions-"),
    "a copy": COPIES,
    "a removal": DELETES,
    "a listing": listings,
    "a look at an object": looks("out"),
    "a shard that is read again": downloads("completions-"),
}
FAULTS: list[Fault] = [Status(503), Status(429), Lost(), Truncated(20, "part"), Truncated(30, "whole"), Reset(10)]
LASTING: list[Fault] = [Status(503), Status(403), Lost()]
UNTOLD = ("an upload's bytes", Truncated(20, "part"))
"""The object is there, and its checksum, which the answer has, is not known: the runner tries the bundle again."""
PASSING_HERE = [
    (what, fault)
    for number, what in enumerate(REQUESTS)
    for fault in (FAULTS[number % len(FAULTS)], FAULTS[(number + 3) % len(FAULTS)])
    if (what, fault) != UNTOLD
]
"""Each request with two faults, each fault at two requests: a pipeline runs for each."""
LASTING_HERE = [(what, LASTING[number % len(LASTING)]) for number, what in enumerate(REQUESTS)]


def completion(identity: str) -> Completion:
    return Completion(id=identity, text=f"said {identity}", finish_reason=FinishReason.STOP, model="m")


def write(output: str, ids: list[str], **options: Any) -> None:
    """Two kinds of rows, each in several bundles, so that shards are joined."""
    with pipeline("--project=p") as p:
        completions = p | beam.Create(ids) | beam.Reshuffle() | beam.Map(completion).with_output_types(Completion)
        letter = DeadLetter(id="bad", error="InvalidRequest", reason="no prompt", row=None, source="x@1")
        letters = p | "Letters" >> beam.Create([letter]).with_output_types(DeadLetter)
        _ = (completions, letters) | WriteCompletions(output, **options)


def failure(action: Callable[[], None]) -> StorageError:
    """What it fails with, as its user is told."""
    with pytest.raises(Exception, match=r"StorageError|gs://") as raised:
        action()
    ours = unwrapped(raised.value)
    assert isinstance(ours, StorageError), raised.value
    return ours


def ids_of(bucket: Bucket, output_format: str = "jsonl") -> list[str]:
    """The ids of all completions that are in their places."""
    names = bucket.names("out/c-")
    if output_format == "jsonl":
        return sorted(row["id"] for row in bucket.rows("out/c-"))
    tables = [pq.read_table(io.BytesIO(bucket.server.get(bucket.name, name))) for name in names]
    return sorted(identity for table in tables for identity in table["id"].to_pylist())


@pytest.mark.parametrize(("what", "fault"), PASSING_HERE, ids=str)
def test_every_row_is_written_once_when_a_request_fails_once(bucket: Bucket, what: str, fault: Fault) -> None:
    rule = bucket.server.inject(fault, REQUESTS[what])
    write(f"{bucket.address}/out/c", IDS, output_format="parquet")
    assert rule.happened == 1
    assert ids_of(bucket, "parquet") == sorted(IDS)
    assert [row["id"] for row in bucket.rows("out/c.dead_letters-")] == ["bad"]
    assert bucket.names("out/c.tmp") == [], "nothing temporary is left"


@pytest.mark.parametrize(("what", "code"), [(COPIES, 503), (DELETES, 429)], ids=["a copy", "a removal"])
def test_a_request_of_a_batch_is_made_again(bucket: Bucket, what: Callable[[Request], bool], code: int) -> None:
    rule = bucket.server.inject(part_fails(code), what, times=2)
    write(f"{bucket.address}/out/c", IDS)
    assert rule.happened == 2
    assert ids_of(bucket) == sorted(IDS)
    assert bucket.names("out/c.tmp") == []


@pytest.mark.parametrize(("what", "fault"), [*LASTING_HERE, UNTOLD], ids=str)
def test_an_output_that_cannot_be_written_is_named_and_a_resumed_run_completes_it(
    bucket: Bucket, what: str, fault: Fault
) -> None:
    output = f"{bucket.address}/out/c"
    bucket.inject_for_good(fault, REQUESTS[what])
    said = str(failure(lambda: write(output, IDS, output_format="parquet")))
    assert f"{bucket.address}/out/c" in said
    assert "\n" not in said
    bucket.server.heal()
    assert ids_of(bucket, "parquet") in ([], sorted(IDS)), "all of a file or nothing"
    resumed(bucket, output_format="parquet")
    assert ids_of(bucket, "parquet") == sorted(IDS)
    assert bucket.names("out/c.tmp") == []


def resumed(bucket: Bucket, **options: Any) -> None:
    output = f"{bucket.address}/out/c"
    with pipeline("--project=p") as p:
        prompts = p | beam.Create([Prompt(id=identity, text="x") for identity in IDS]).with_output_types(Prompt)
        todo = prompts | SkipCompleted(output, **options)
        completions = todo | beam.Map(lambda prompt: completion(prompt.id)).with_output_types(Completion)
        _ = (completions,) | WriteCompletions(output, if_exists="resume", **options)


def test_a_shard_that_arrives_altered_becomes_no_output(bucket: Bucket) -> None:
    bucket.inject_for_good(Altered(5), downloads("completions-"))
    said = str(failure(lambda: write(f"{bucket.address}/out/c", IDS, num_shards=1, output_format="parquet")))
    assert "completions-" in said
    assert "checksum" in said
    assert bucket.names("out/c-") == []


def run(bucket: Bucket, if_exists: IfExists = "refuse") -> None:
    output = f"{bucket.address}/out/c"
    with pipeline("--project=p") as p:
        prompts, unreadable = p | ReadPrompts(f"{bucket.address}/in/*").with_exception_handling()
        todo = prompts | SkipCompleted(output) if if_exists == "resume" else prompts
        completions = todo | Generate("m", open_client=StandInClient)
        _ = (completions, unreadable) | WriteCompletions(output, if_exists=if_exists)


def texts(bucket: Bucket) -> list[str]:
    return sorted(row["text"] for row in bucket.rows("out/c-"))


@pytest.fixture
def prompts(bucket: Bucket) -> Bucket:
    bucket.put("in/a.jsonl", b'"one"\nbad\n"two"\n')
    bucket.put("in/b.txt.gz", gzip.compress(b"three\n"))
    return bucket


def unsteady(bucket: Bucket) -> None:
    """A fault of every kind, at one request in three of the kinds that it suits."""
    for number, fault in enumerate([*FAULTS, Truncated(0, "part"), Altered()]):
        bucket.server.inject(fault, downloads("in/"), after=3 * number)
    for number, fault in enumerate(FAULTS):
        for matches in (beginnings("c"), chunks("c"), COPIES, DELETES, listings, looks("c")):
            bucket.server.inject(fault, matches, after=3 * number)


def test_a_run_a_resumed_one_and_an_overwriting_one_are_right_through_all_of_it(prompts: Bucket) -> None:
    unsteady(prompts)
    run(prompts)
    assert texts(prompts) == ["ONE", "THREE", "TWO"]
    assert [row["row"] for row in prompts.rows("out/c.dead_letters-")] == ["bad"]
    with pytest.raises(ConfigError, match="already there"):
        run(prompts)
    prompts.put("in/c.txt", b"four\n")
    run(prompts, "resume")
    assert texts(prompts) == ["FOUR", "ONE", "THREE", "TWO"]
    prompts.put("in/a.jsonl", b'"uno"\n')
    run(prompts, "overwrite")
    assert texts(prompts) == ["FOUR", "THREE", "UNO"]
    assert prompts.names("out/c.tmp") == []


@pytest.mark.parametrize("what", ["an upload's bytes", "a copy", "a removal"])
def test_an_overwriting_run_that_fails_leaves_the_old_output_or_the_new(prompts: Bucket, what: str) -> None:
    run(prompts)
    prompts.put("in/a.jsonl", b'"uno"\n')
    prompts.inject_for_good(Status(503), REQUESTS[what])
    failure(lambda: run(prompts, "overwrite"))
    prompts.server.heal()
    assert set(texts(prompts)) >= {"ONE", "TWO", "THREE"} or texts(prompts) == ["THREE", "UNO"]
    run(prompts, "resume")  # where the old output is left, its row is answered beside the old answer: it has changed
    assert texts(prompts) in (["ONE", "THREE", "TWO", "UNO"], ["THREE", "UNO"])
    assert prompts.names("out/c.tmp") == []


def test_rows_that_go_up_in_several_chunks_arrive_once(bucket: Bucket) -> None:
    """More than 16 MiB; each chunk is sent twice."""
    text = "x" * 2**20
    bucket.server.inject(Lost(), chunks("completions-"))
    bucket.server.inject(Status(503), chunks("completions-"), after=2)
    rows = [msgspec.structs.replace(completion(identity), text=text) for identity in IDS[:20]]
    with pipeline("--project=p") as p:
        _ = p | beam.Create(rows).with_output_types(Completion) | WriteCompletions(f"{bucket.address}/out/c")
    assert ids_of(bucket) == sorted(IDS[:20])
    assert all(row["text"] == text for row in bucket.rows("out/c-"))


def test_a_completion_that_was_read_half_is_not_taken_for_missing(bucket: Bucket) -> None:
    """A resumed run that saw only the beginning of the earlier output would complete the rest again."""
    run_ids = "".join(json.dumps({"id": i, "finish_reason": "stop"}) + "\n" for i in IDS).encode()
    bucket.put("out/c-00000-of-00001.jsonl", run_ids)
    bucket.server.inject(Truncated(len(run_ids) // 2, "none"), downloads("out/c-"))
    bucket.server.inject(Truncated(0, "part"), downloads("out/c-"), after=1)
    resumed(bucket)
    assert bucket.names("out/") == ["out/c-00000-of-00001.jsonl"]

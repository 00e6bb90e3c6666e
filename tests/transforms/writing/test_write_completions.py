import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, Repeatedly
from apache_beam.transforms.window import FixedWindows, GlobalWindow, GlobalWindows, TimestampedValue

from millrace.model_manager.wire.errors import ConfigError, ErrorInfo
from millrace.model_manager.wire.logprobs import TokenLogprob, TopLogprob
from millrace.model_manager.wire.request import FinishReason
from millrace.model_manager.wire.timings import Timings
from millrace.transforms.elements.completions import Choice, Completion, DeadLetter, Usage
from millrace.transforms.writing import output_rows
from millrace.transforms.writing.finalize import WrittenFile
from millrace.transforms.writing.output_files import OutputFiles
from millrace.transforms.writing.output_rows import PARQUET_SCHEMA
from millrace.transforms.writing.shards import WriteShards
from millrace.transforms.writing.write_completions import WriteCompletions
from tests.transforms.running import check, pipeline

COLUMNS = {"id": "theirs", "text": 1, "nested": {"a": [None, "ü"]}}


def completion(identity: str = "a", **fields: Any) -> Completion:
    given: dict[str, Any] = {"text": "said", "finish_reason": FinishReason.STOP, "columns": COLUMNS} | fields
    return Completion(
        id=identity, usage=Usage(3, 2, 1), timings=Timings(0.1, 0.2, 0.3), latency=0.5, model="m", **given
    )


def letter(identity: str = "bad", **fields: str) -> DeadLetter:
    return DeadLetter(id=identity, error="InvalidRequest", reason="no prompt", row={"x": 1}, source="file:3", **fields)


def write(*elements: Completion, dead: list[DeadLetter] | None = None, **options: Any) -> None:
    with pipeline() as p:
        completions = p | "Completions" >> beam.Create(list(elements)).with_output_types(Completion)
        letters = p | "Dead letters" >> beam.Create(dead or []).with_output_types(DeadLetter)
        _ = (completions, letters) | WriteCompletions(**options)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_of_jsonl_hold_everything_and_the_further_columns_apart(tmp_path: Path) -> None:
    failed = completion("b", text="", finish_reason=FinishReason.ERROR, error=ErrorInfo(kind="K", message="why"))
    write(completion(stop_reason="END"), failed, output=str(tmp_path / "out"))
    assert names(tmp_path) == ["out-00000-of-00001.jsonl"]
    first, second = sorted(rows(tmp_path / "out-00000-of-00001.jsonl"), key=lambda row: row["id"])
    assert first == {
        "id": "a",
        "text": "said",
        "finish_reason": "stop",
        "stop_reason": "END",
        "usage": {"prompt_tokens": 3, "cached_tokens": 2, "completion_tokens": 1},
        "timings": {"queued": 0.1, "first_token": 0.2, "finished": 0.3, "latency": 0.5},
        "model": "m",
        "columns": COLUMNS,
    }
    assert second["error"] == {"kind": "K", "message": "why"}


def test_rows_of_parquet_have_one_schema_whatever_is_in_them(tmp_path: Path) -> None:
    write(completion(stop_reason=7), output=str(tmp_path / "one"), output_format="parquet")
    write(Completion(id="b", finish_reason=FinishReason.LENGTH), output=str(tmp_path / "two.parquet"))
    one, two = (pq.read_table(tmp_path / f"{name}-00000-of-00001.parquet") for name in ("one", "two"))
    assert one.schema.equals(PARQUET_SCHEMA)
    assert two.schema.equals(PARQUET_SCHEMA)
    (row,) = one.to_pylist()
    assert json.loads(row["columns"]) == COLUMNS
    assert (row["usage"]["prompt_tokens"], row["stop_reason"], row["error"]) == (3, "7", None)
    metadata = pq.ParquetFile(tmp_path / "one-00000-of-00001.parquet").metadata
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_several_answers_are_a_list_in_both_formats(tmp_path: Path) -> None:
    choices = [
        Choice(text="one", finish_reason=FinishReason.STOP, stop_reason=7),
        Choice(text="two", finish_reason=FinishReason.LENGTH, closed_at=2),
    ]
    for output_format in ("jsonl", "parquet"):
        write(completion(choices=choices), output=str(tmp_path / output_format), output_format=output_format)
    (row,) = rows(tmp_path / "jsonl-00000-of-00001.jsonl")
    assert row["choices"] == [
        {"text": "one", "finish_reason": "stop", "stop_reason": 7},
        {"text": "two", "finish_reason": "length", "closed_at": 2},
    ]
    (row,) = pq.read_table(tmp_path / "parquet-00000-of-00001.parquet").to_pylist()
    assert row["choices"] == [
        {"text": "one", "finish_reason": "stop", "stop_reason": "7", "closed_at": None, "logprobs": None},
        {"text": "two", "finish_reason": "length", "stop_reason": None, "closed_at": 2, "logprobs": None},
    ]


LOGPROBS = [TokenLogprob("sa", 7, -0.5, [TopLogprob("sa", 7, -0.5), TopLogprob("b", 8, -9999.0)])]
WRITTEN_LOGPROBS = [
    {
        "token": "sa",
        "token_id": 7,
        "logprob": -0.5,
        "top_logprobs": [
            {"token": "sa", "token_id": 7, "logprob": -0.5},
            {"token": "b", "token_id": 8, "logprob": -9999.0},
        ],
    }
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_log_probabilities_are_written_where_there_are_some(tmp_path: Path, kind: str) -> None:
    write(completion(logprobs=LOGPROBS), completion("b"), output=str(tmp_path / "out"), output_format=kind)
    path = tmp_path / f"out-00000-of-00001.{kind}"
    written = rows(path) if kind == "jsonl" else pq.read_table(path).to_pylist()
    first, second = sorted(written, key=lambda row: str(row["id"]))
    assert first["logprobs"] == WRITTEN_LOGPROBS
    assert second.get("logprobs") is None


def test_dead_letters_stand_beside_the_completions_with_reason_class_and_row(tmp_path: Path) -> None:
    write(completion(), dead=[letter()], output=str(tmp_path / "out"), output_format="parquet")
    assert names(tmp_path) == ["out-00000-of-00001.parquet", "out.dead_letters-00000-of-00001.jsonl"]
    assert rows(tmp_path / "out.dead_letters-00000-of-00001.jsonl") == [
        {"id": "bad", "error": "InvalidRequest", "reason": "no prompt", "source": "file:3", "row": {"x": 1}}
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_who_made_a_result_is_written_down_to_the_revision(tmp_path: Path, kind: str) -> None:
    made = completion(revision="folder-1")
    dead = [letter(model="m", revision="folder-2")]
    write(made, output=str(tmp_path / "out"), output_format=kind, dead=dead)
    path = tmp_path / f"out-00000-of-00001.{kind}"
    (row,) = rows(path) if kind == "jsonl" else pq.read_table(path).to_pylist()
    assert (row["model"], row["revision"]) == ("m", "folder-1")
    (row,) = rows(tmp_path / "out.dead_letters-00000-of-00001.jsonl")
    assert (row["model"], row["revision"]) == ("m", "folder-2")


def test_without_elements_there_are_no_files(tmp_path: Path) -> None:
    write(output=str(tmp_path / "out"))
    assert names(tmp_path) == []


def test_the_written_files_are_told(tmp_path: Path) -> None:
    path = f"{tmp_path}/out-00000-of-00001.jsonl"
    with pipeline() as p:
        written = p | beam.Create([completion()]) | WriteCompletions(f"{tmp_path}/out")
        check(written, lambda files: files == [WrittenFile("completions", path, 1)])


def test_shards_are_as_many_as_asked_for_and_there_is_work_for(tmp_path: Path) -> None:
    with pipeline("--direct_num_workers=4", "--direct_running_mode=multi_threading") as p:
        completions = p | beam.Create([completion(str(number)) for number in range(100)])
        _ = completions | WriteCompletions(f"{tmp_path}/out", num_shards=2)
    found = [row["id"] for name in names(tmp_path) for row in rows(tmp_path / name)]
    assert len(names(tmp_path)) <= 2
    assert sorted(found, key=int) == [str(number) for number in range(100)]


def test_a_bundle_of_much_output_becomes_files_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("shards", "finalize"):
        monkeypatch.setattr(f"millrace.transforms.writing.{module}.FULL_BYTES", 2000)
    write(*(completion(f"r{number}") for number in range(50)), output=str(tmp_path / "out"))
    files = [*tmp_path.glob("out-*.jsonl")]
    row = max(len(line) for file in files for line in file.read_bytes().splitlines(keepends=True))
    sizes = sorted(file.stat().st_size for file in files)
    assert len(sizes) > 5
    assert sizes[1] >= 2000, "all but the last are full"
    assert sizes[-1] < 2000 + row
    assert sorted(row["id"] for file in files for row in rows(file)) == sorted(f"r{number}" for number in range(50))


def test_a_bundle_that_is_tried_again_has_each_row_in_one_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.transforms.writing.shards.FULL_BYTES", 2000)
    step, window = WriteShards(OutputFiles(str(tmp_path / "out")), "run", "completions", openai=False), GlobalWindow()
    for count in (30, 50):  # the first try fails after some full shards
        step.start_bundle()
        for number in range(count):
            step.process(completion(f"r{number}"), window)
    shards = [each.value for each in step.finish_bundle()]
    assert len(shards) > 5
    assert [row["id"] for shard in shards for row in rows(Path(shard.path))] == [f"r{number}" for number in range(50)]
    assert sum(shard.rows for shard in shards) == 50


def test_output_that_is_there_is_refused(tmp_path: Path) -> None:
    write(completion(), output=str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="already there"):
        write(completion(), output=str(tmp_path / "out"))
    write(completion(), output=str(tmp_path / "out-other"))
    write(completion(), output=str(tmp_path / "ou"))


def test_output_that_is_there_is_replaced_when_told(tmp_path: Path) -> None:
    write(completion("old"), dead=[letter()], output=str(tmp_path / "out"))
    write(completion("new"), output=str(tmp_path / "out.parquet"), if_exists="overwrite")
    assert names(tmp_path) == ["out-00000-of-00001.parquet"]


@pytest.mark.parametrize("if_exists", ["refuse", "overwrite", "resume"])
def test_the_output_of_another_run_whose_name_begins_alike_is_left_alone(tmp_path: Path, if_exists: str) -> None:
    write(completion("theirs"), dead=[letter()], output=str(tmp_path / "run-2"))
    theirs = {path: path.read_bytes() for path in tmp_path.iterdir()}
    if if_exists != "refuse":
        write(completion("old"), dead=[letter()], output=str(tmp_path / "run"))
    write(completion("new"), output=str(tmp_path / "run"), if_exists=if_exists)
    assert {path: path.read_bytes() for path in theirs} == theirs
    assert len(names(tmp_path)) == (4 if if_exists == "resume" else 3)


def test_a_resumed_run_adds_files_beside_those_that_are_there(tmp_path: Path) -> None:
    write(completion("old"), dead=[letter("old bad")], output=str(tmp_path / "out"))
    write(completion("new"), dead=[letter("new bad")], output=str(tmp_path / "out"), if_exists="resume")
    write(completion("newer"), output=str(tmp_path / "out"), if_exists="resume")
    assert names(tmp_path) == [
        "out-00000-of-00001.jsonl",
        "out-resume1-00000-of-00001.jsonl",
        "out-resume2-00000-of-00001.jsonl",
    ]


def test_the_leftovers_of_an_interrupted_run_are_refused_until_told(tmp_path: Path) -> None:
    left = tmp_path / "out.tmp" / "run" / "completions-x.jsonl"
    left.parent.mkdir(parents=True)
    left.touch()
    with pytest.raises(ConfigError, match="interrupted"):
        write(completion(), output=str(tmp_path / "out"))
    write(completion(), output=str(tmp_path / "out"), if_exists="overwrite")
    assert names(tmp_path) == ["out-00000-of-00001.jsonl"]


def fail_at_the_last(element: Completion) -> Completion:
    if element.id == "last":
        raise RuntimeError("no more")
    return element


def test_rows_are_on_the_disk_before_the_job_is_done(tmp_path: Path) -> None:
    elements = [completion(str(number)) for number in range(5)] + [completion("last")]
    with pytest.raises(RuntimeError, match="no more"), pipeline() as p:
        _ = (
            p
            | beam.Create(elements, reshuffle=False)
            | beam.Map(fail_at_the_last)
            | WriteCompletions(f"{tmp_path}/out")
        )
    (shard,) = tmp_path.glob("out.tmp/*/completions-*.jsonl")
    assert [row["id"] for row in rows(shard)] == list("01234")


def test_each_window_has_its_files(tmp_path: Path) -> None:
    with pipeline() as p:
        _ = (
            p
            | beam.Create([TimestampedValue(completion(str(second)), second) for second in (0, 30, 70)])
            | beam.WindowInto(FixedWindows(60))
            | WriteCompletions(f"{tmp_path}/out")
        )
    assert names(tmp_path) == [
        "out-19700101T000000Z-19700101T000100Z-00000-of-00001.jsonl",
        "out-19700101T000100Z-19700101T000200Z-00000-of-00001.jsonl",
    ]


def test_a_stream_is_written_window_by_window(tmp_path: Path) -> None:
    stream = test_stream.TestStream()
    for second in (0, 60):
        element = TimestampedValue(completion(str(second)), second)
        stream = stream.add_elements([element]).advance_watermark_to(second + 60)
    with beam.Pipeline(options=PipelineOptions(["--streaming"])) as p:
        source = p | stream.advance_watermark_to_infinity()
        _ = source | beam.WindowInto(FixedWindows(60)) | WriteCompletions(f"{tmp_path}/out")
    assert len(list(tmp_path.glob("out-*.jsonl"))) == 2


def test_a_stream_without_windows_is_refused(tmp_path: Path) -> None:
    stream = test_stream.TestStream().add_elements([completion()]).advance_watermark_to_infinity()
    source = beam.Pipeline(options=PipelineOptions(["--streaming"])) | stream
    with pytest.raises(ConfigError, match="WindowInto"):
        source | WriteCompletions(f"{tmp_path}/out")


def test_panes_that_accumulate_are_refused(tmp_path: Path) -> None:
    trigger = Repeatedly(AfterCount(1))
    rows = beam.Pipeline() | beam.Create([completion()])
    rows |= beam.WindowInto(GlobalWindows(), trigger=trigger, accumulation_mode=AccumulationMode.ACCUMULATING)
    with pytest.raises(ConfigError, match="accumulated"):
        rows | WriteCompletions(f"{tmp_path}/out")


@pytest.mark.parametrize(
    "options",
    [
        {"output": ""},
        {"output": "a*"},
        {"output": "a", "output_format": "tsv"},
        {"output": "a", "num_shards": 0},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        WriteCompletions(**options)


def test_a_folder_gets_files_of_a_default_name(tmp_path: Path) -> None:
    write(completion(), output=f"{tmp_path}/")
    assert names(tmp_path) == ["completions-00000-of-00001.jsonl"]


def test_display_data_names_the_place() -> None:
    items = DisplayData.create_from(WriteCompletions("a/b.parquet"), extra_items={}).items
    shown = {item.key: item.value for item in items}
    assert (shown["output"], shown["output_format"]) == ("a/b", "parquet")


def test_a_template_that_runs_again_refuses_what_the_first_run_wrote(tmp_path: Path) -> None:
    first = tmp_path / "out-00000-of-00001.jsonl"
    p = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(["--template_location=gs://bucket/template"]))
    _ = p | beam.Create([completion("new")]).with_output_types(Completion) | WriteCompletions(f"{tmp_path}/out")
    first.write_text("of the first run")
    with pytest.raises(Exception, match="already there"):
        p.run()
    assert first.read_text() == "of the first run"
    assert names(tmp_path) == [first.name]


def test_a_row_group_of_parquet_ends_where_its_rows_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages hold any number of rows, and who reads them holds a page whole."""
    monkeypatch.setattr(output_rows, "_BYTES_A_GROUP", 100_000)
    lines = [output_rows.json_line(completion(str(n), text="t" * size)) for n, size in enumerate([60_000, 60_000, 5])]
    with (tmp_path / "out.parquet").open("wb") as stream:
        assert output_rows.write_parquet(lines, stream) == 3
    metadata = pq.ParquetFile(tmp_path / "out.parquet").metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2, 1]

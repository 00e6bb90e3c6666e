"""Files of a stream: by window and shard, complete, each row once, also where the runner tries again."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.window import FixedWindows, IntervalWindow, TimestampedValue
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.request import FinishReason
from millrace.transforms.elements.completions import Completion, DeadLetter
from millrace.transforms.streams.windowed_files import WriteWindowedFiles, _Build
from millrace.transforms.writing.finalize import MakeFile, PlannedFile, WrittenFile
from millrace.transforms.writing.output_files import OutputFiles, RunFiles
from tests.transforms.running import check, pipeline

FIRST = "19700101T000000Z-19700101T000100Z"
SECOND = "19700101T000100Z-19700101T000200Z"


def completion(identity: str) -> Completion:
    return Completion(id=identity, text="said", finish_reason=FinishReason.STOP)


def letter(identity: str) -> DeadLetter:
    return DeadLetter(id=identity, error="InvalidRequest", reason="no prompt")


def at(second: float, element: Any) -> TimestampedValue:
    return TimestampedValue(element, second)


def write(output: Path, completions: Iterable[Any], letters: Iterable[Any] = (), **options: Any) -> None:
    with pipeline() as p:
        main = p | "Completions" >> beam.Create(list(completions)).with_output_types(Completion)
        dead = p | "Dead letters" >> beam.Create(list(letters)).with_output_types(DeadLetter)
        _ = (main, dead) | WriteWindowedFiles(str(output), **options)


def ids(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return sorted(row["id"] for row in pq.read_table(path).to_pylist())
    return sorted(json.loads(line)["id"] for line in path.read_text().splitlines())


def written(folder: Path) -> dict[str, list[str]]:
    """The ids in each file."""
    return {path.name: ids(path) for path in sorted(folder.iterdir()) if path.is_file()}


def test_rows_are_in_the_files_of_their_windows(tmp_path: Path) -> None:
    write(tmp_path / "out", [at(0, completion("a")), at(59.9, completion("b")), at(60, completion("c"))])
    assert written(tmp_path) == {
        f"out-{FIRST}-00000-of-00001.jsonl": ["a", "b"],
        f"out-{SECOND}-00000-of-00001.jsonl": ["c"],
    }


def test_windows_are_as_long_as_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "out", [at(0, completion("a")), at(1.5, completion("b"))], window=0.5)
    assert list(written(tmp_path)) == [
        "out-19700101T000000Z-19700101T000000500000Z-00000-of-00001.jsonl",
        "out-19700101T000001500000Z-19700101T000002Z-00000-of-00001.jsonl",
    ]


def test_dead_letters_have_files_beside_them(tmp_path: Path) -> None:
    write(tmp_path / "out", [at(0, completion("a"))], [at(70, letter("bad"))], output_format="parquet")
    assert written(tmp_path) == {
        f"out-{FIRST}-00000-of-00001.parquet": ["a"],
        f"out.dead_letters-{SECOND}-00000-of-00001.jsonl": ["bad"],
    }


def test_a_rows_shard_follows_from_its_id(tmp_path: Path) -> None:
    rows = [at(0, completion(str(number))) for number in range(40)]
    write(tmp_path / "one", rows, num_shards=3)
    write(tmp_path / "two", reversed(rows), num_shards=3)
    one = {name.removeprefix("one"): found for name, found in written(tmp_path).items() if name.startswith("one")}
    two = {name.removeprefix("two"): found for name, found in written(tmp_path).items() if name.startswith("two")}
    assert one == two
    assert list(one) == [f"-{FIRST}-0000{number}-of-00003.jsonl" for number in range(3)]
    assert sorted((row for found in one.values() for row in found), key=int) == [str(number) for number in range(40)]


def test_the_written_files_are_told(tmp_path: Path) -> None:
    path = f"{tmp_path}/out-{FIRST}-00000-of-00001.jsonl"
    with pipeline() as p:
        files = p | beam.Create([at(0, completion("a"))]) | WriteWindowedFiles(f"{tmp_path}/out")
        check(files, lambda found: found == [WrittenFile("completions", path, 1)])


def stream_to(folder: Path, stream: test_stream.TestStream, **options: Any) -> None:
    with beam.Pipeline(options=PipelineOptions(["--streaming"])) as p:
        source = p | stream.advance_watermark_to_infinity()
        _ = source | WriteWindowedFiles(f"{folder}/out", **options)


def test_rows_that_come_when_their_window_is_over_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    stream = test_stream.TestStream().add_elements([at(0, completion("a"))]).advance_watermark_to(60)
    stream_to(tmp_path, stream.add_elements([at(10, completion("late"))]))
    assert written(tmp_path) == {
        f"out-{FIRST}-00000-of-00001.jsonl": ["a"],
        f"out-{FIRST}-pane1-00000-of-00001.jsonl": ["late"],
    }


def test_a_window_is_forgotten_when_its_lateness_is_over(tmp_path: Path) -> None:
    stream = test_stream.TestStream().add_elements([at(0, completion("a"))]).advance_watermark_to(75)
    stream_to(tmp_path, stream.add_elements([at(10, completion("too late"))]), lateness=10)
    assert written(tmp_path) == {f"out-{FIRST}-00000-of-00001.jsonl": ["a"]}


def test_output_that_is_there_is_refused_or_added_to(tmp_path: Path) -> None:
    write(tmp_path / "out", [at(0, completion("old"))])
    with pytest.raises(ConfigError, match="already there"):
        write(tmp_path / "out", [at(0, completion("new"))])
    write(tmp_path / "out", [], [at(0, letter("bad"))], if_exists="resume")
    write(tmp_path / "out", [at(0, completion("new"))], [at(0, letter("worse"))], if_exists="resume")
    assert written(tmp_path) == {
        f"out-{FIRST}-00000-of-00001.jsonl": ["old"],
        f"out-resume2-{FIRST}-00000-of-00001.jsonl": ["new"],
        f"out.dead_letters-resume1-{FIRST}-00000-of-00001.jsonl": ["bad"],
        f"out.dead_letters-resume2-{FIRST}-00000-of-00001.jsonl": ["worse"],
    }


def planned(folder: Path, lines: list[bytes]) -> PlannedFile:
    """The plan of a firing of the first window."""
    build = _Build(RunFiles(OutputFiles(f"{folder}/out"), "jsonl"), 1)
    (plan,) = build.process((("completions", 0), lines), IntervalWindow(0, 60), PANE_INFO_UNKNOWN)
    return plan


def test_an_attempt_that_is_repeated_gives_the_same_file(tmp_path: Path) -> None:
    first, second = (planned(tmp_path, [b'{"id": "a"}\n']) for _ in range(2))
    assert first.path == second.path
    assert first.sources != second.sources
    for _ in range(2):
        for plan in (first, second):
            list(MakeFile(OutputFiles(f"{tmp_path}/out")).process(plan))
    assert written(tmp_path) == {f"out-{FIRST}-00000-of-00001.jsonl": ["a"]}


def test_nothing_has_the_files_name_before_it_is_complete(tmp_path: Path) -> None:
    def lines() -> Iterable[bytes]:
        yield b'{"id": "a"}\n'
        assert not list(tmp_path.glob("out-*"))
        raise ConnectionError("the runner's state is gone")

    with pytest.raises(ConnectionError):
        planned(tmp_path, lines())  # type: ignore[arg-type]
    assert written(tmp_path) == {}


def stable_steps(*flags: str) -> list[str]:
    """Names of the steps that ask for input that is durable; the pipeline's requirements agree."""
    p = beam.Pipeline(runner=PortableRunner(), options=PipelineOptions(list(flags)))
    _ = p | beam.Create([completion("a")]) | WriteWindowedFiles("/nowhere/out")
    found, proto = [], p.to_runner_api()
    for transform in proto.components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            found += [transform.unique_name.rsplit("/", 1)[-1]] * payload.requires_stable_input
    assert ("beam:requirement:pardo:stable_input:v1" in proto.requirements) == bool(found)
    return found


@pytest.mark.parametrize("flags", [["--checkpointing_interval=1000"], ["--checkpointing_interval", "1000"]])
def test_files_are_placed_from_input_that_a_checkpoint_of_flink_has(flags: list[str]) -> None:
    assert stable_steps(*flags) == ["Place files"]


def test_no_other_runner_is_asked_for_what_it_refuses() -> None:
    assert stable_steps("--streaming") == []


@pytest.mark.parametrize(
    "options",
    [
        {"output": ""},
        {"output": "a*"},
        {"output": "a", "output_format": "tsv"},
        {"output": "a", "num_shards": 0},
        {"output": "a", "window": 0},
        {"output": "a", "lateness": -1},
        {"output": "a", "lateness": float("inf")},
        {"output": "a", "if_exists": "overwrite"},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        WriteWindowedFiles(**options)


def test_windows_of_the_input_do_not_matter(tmp_path: Path) -> None:
    with pipeline() as p:
        rows = p | beam.Create([at(0, completion("a")), at(30, completion("b"))])
        _ = rows | beam.WindowInto(FixedWindows(10)) | WriteWindowedFiles(f"{tmp_path}/out")
    assert written(tmp_path) == {f"out-{FIRST}-00000-of-00001.jsonl": ["a", "b"]}


def test_display_data_names_place_and_window() -> None:
    items = DisplayData.create_from(WriteWindowedFiles("a/b.parquet", window=30), extra_items={}).items
    shown = {item.key: item.value for item in items}
    assert (shown["output"], shown["output_format"], shown["window"]) == ("a/b", "parquet", 30)

"""Inputs and outputs by their addresses; an impossible one is refused before a job begins."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.commands.job_commands import generate as main
from millrace.pipelines.flags.job_options import JobOptions, parse
from millrace.pipelines.places.checks import check
from millrace.pipelines.places.sources_and_sinks import are_same_files, clear_temporary, files_of, reader, writer
from millrace.transforms.addresses import Files
from millrace.transforms.elements.completions import DeadLetter
from millrace.transforms.reading.read_prompts import ReadPrompts
from millrace.transforms.streams.kafka import ReadKafka, WriteKafka
from millrace.transforms.streams.pubsub import ReadPubSub, WritePubSub
from millrace.transforms.streams.watch import WatchPrompts
from millrace.transforms.streams.windowed_files import WriteWindowedFiles
from millrace.transforms.writing.write_completions import WriteCompletions
from tests.json_lines import rows_of
from tests.pipelines.refusals import Refused

SUBSCRIPTION = "pubsub:projects/my-project/subscriptions/prompts"
TOPIC = "pubsub:projects/my-project/topics/answers"
KAFKA = "kafka:one:9092,two:9092/prompts"


def options(*flags: str, source: str = "prompts.jsonl") -> JobOptions:
    return parse(["--input", source, *flags])


@pytest.mark.parametrize(
    ("source", "transform"),
    [
        ("a.jsonl", ReadPrompts),
        ("watch:in/*.jsonl", WatchPrompts),
        (SUBSCRIPTION, ReadPubSub),
        (TOPIC, ReadPubSub),
        (KAFKA, ReadKafka),
    ],
)
def test_an_input_is_read_by_what_its_scheme_names(source: str, transform: type) -> None:
    assert type(reader(options(source=source))) is transform
    assert options(source=source).is_stream == (transform is not ReadPrompts)


@pytest.mark.parametrize(
    ("output", "transform"), [("out/c", WriteCompletions), (TOPIC, WritePubSub), (KAFKA, WriteKafka)]
)
def test_an_output_is_written_by_what_its_scheme_names(output: str, transform: type) -> None:
    written: Any = writer(options("--output", output))
    assert type(getattr(written, "_results", written)) is transform
    assert (files_of(options("--output", output)) is None) == (transform is not WriteCompletions)


def test_files_of_a_stream_are_written_by_window() -> None:
    flags = ["--window=5", "--lateness=9", "--num_shards=3"]
    written: Any = writer(options("--output", "out/c", *flags, source="watch:in/*.jsonl"))
    assert type(written) is WriteWindowedFiles
    assert (written._window, written._lateness, written._num_shards) == (5, 9, 3)
    by_default: Any = writer(options("--output", "out/c", source=KAFKA))
    assert (by_default._window, by_default._lateness, by_default._num_shards) == (60, 24 * 3600, 1)
    letters: Any = writer(options("--output", TOPIC, "--dead_letters", "out/letters", source=KAFKA))
    assert (type(letters._results), type(letters._letters)) == (WritePubSub, WriteWindowedFiles)


def test_dead_letters_go_where_the_results_go_unless_told_otherwise() -> None:
    together: Any = writer(options("--output", TOPIC))
    apart: Any = writer(options("--output", TOPIC, "--dead_letters", KAFKA))
    beside: Any = writer(options("--output", "out/c", "--dead_letters", KAFKA))
    assert (type(together._results), type(together._letters)) == (WritePubSub, WritePubSub)
    assert (type(apart._results), type(apart._letters)) == (WritePubSub, WriteKafka)
    assert (type(beside._results), type(beside._letters)) == (WriteCompletions, WriteKafka)
    assert [each._returns for each in (together, apart, beside)] == [False, True, False]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--input", SUBSCRIPTION, "--input", "a.jsonl"],
            f"--input {SUBSCRIPTION}: is a stream: takes one stream alone, or files",
        ),
        (["--input", KAFKA, SUBSCRIPTION], f"--input {KAFKA}: is a stream: takes one stream alone, or files"),
        (["--input", KAFKA, "--overwrite"], "--overwrite: a stream replaces no output"),
        (["--input", "a.jsonl", "--output", TOPIC, "--overwrite"], "--overwrite needs files as --output"),
        (["--input", "a.jsonl", "--output", TOPIC, "--resume"], "--resume needs files as --output, and pubsub:"),
        (["--input", KAFKA, "--output", TOPIC, "--num_shards=2"], "--num_shards needs files as --output"),
        (["--input", KAFKA, "--output", TOPIC, "--output_format=parquet"], "--output_format needs files as --output"),
        (["--input", KAFKA, "--output", TOPIC, "--window=9"], "--window needs files as --output"),
        (["--input", "a.jsonl", "--window=9"], "--window 9 needs a stream as --input, and a.jsonl is not one"),
        (["--input", KAFKA, "--output", TOPIC, "--lateness=9"], "--lateness needs files as --output"),
        (["--input", "a.jsonl", "--lateness=0"], "--lateness 0 needs a stream as --input, and a.jsonl is not one"),
        (["--input", "watch:in/*", "--lateness=-1"], "--lateness -1: takes seconds, 0 or more"),
        (["--input", "watch:in/*", "--lateness=nan"], "--lateness nan: takes seconds, 0 or more"),
        (["--input", "watch:in/*", "--lateness=soon"], "--lateness"),
        (["--input", KAFKA, "--output", "watch:out/*"], "--output watch:out/*: takes a topic"),
        (["--input", KAFKA, "--dead_letters", "watch:out/*"], "--dead_letters watch:out/*: takes a topic"),
        (["--input", KAFKA, "--output", TOPIC, "--stateful"], "--stateful: PrismRunner keeps its state in memory only"),
        (["--input", KAFKA, "--output", TOPIC, "--stateful", "--runner=PrismRunner"], "would be lost with it"),
        (["--input", KAFKA, "--output", TOPIC, "--runner=FlinkRunner"], "--checkpointing_interval is missing"),
        (
            ["--input", KAFKA, "--output", TOPIC, "--dead_letters=out/l", "--output_format=parquet"],
            "needs files as --output",
        ),
        (
            ["--input", "a.jsonl", "--output", TOPIC, "--dead_letters=out/l", "--resume"],
            "--resume needs files as --output",
        ),
        (["--input", KAFKA, "--output", TOPIC, "--runner=FnApiRunner"], "--runner FnApiRunner: reads input that ends"),
        (["--input", KAFKA, "--output", TOPIC, "--runner=DirectRunner"], "takes PrismRunner (the default)"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(flags: list[str], sentence: str, refused: Refused) -> None:
    assert sentence in refused.run("--backend", "fake", *flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["--dead_letters", "out/l", "--resume", "--window=9", "--num_shards=2"],
        ["--runner=FlinkRunner", "--checkpointing_interval=10000"],
        ["--runner=DataflowRunner", "--stateful"],
    ],
)
def test_what_goes_together_is_taken(flags: list[str]) -> None:
    check(options("--output", TOPIC, *flags, source=KAFKA))


def test_letters_of_a_stream_in_files_are_added_to_by_a_second_run(tmp_path: Path) -> None:
    (tmp_path / "l-00000-of-00001.jsonl").touch()
    flags = ["--output", TOPIC, "--dead_letters", str(tmp_path / "l")]

    def apply(*more: str) -> None:
        each: Any = writer(options(*flags, *more, source=KAFKA))
        letters = beam.Pipeline() | beam.Create([DeadLetter(id="a", error="E", reason="r")])
        letters | each._letters

    with pytest.raises(ConfigError, match=r"already there: --resume adds to it$"):
        apply()
    apply("--resume")


@pytest.mark.parametrize("letters", ["out/c", "out//c", "./out/c.jsonl", "out/c.parquet"])
def test_one_prefix_has_one_writer(letters: str) -> None:
    for results in ("out/c", "out/c.parquet"):
        assert type(writer(options("--output", results, "--dead_letters", letters))) is WriteCompletions
    apart: Any = writer(options("--output", "out/c", "--dead_letters", "out/d"))
    assert type(apart._letters) is WriteCompletions


@pytest.mark.usefixtures("runtime")
def test_a_resumed_run_has_its_letters_apart_replace_the_earlier_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    flags = ["--input", str(rows), "--output", str(tmp_path / "c"), "--dead_letters", str(tmp_path / "l")]
    flags += ["--backend=fake", "--max_tokens=2", "--linger=0.1", "--orphan_grace=0.1", "--quiet"]

    rows.write_text('{"id": "a", "prompt": "x"}\nnot JSON\n{"id": "b"}\n')
    assert main(flags) == 0
    assert len(rows_of(tmp_path, "l-*.jsonl")) == 2
    assert main([*flags, "--output", str(tmp_path / "other")]) == 2
    assert f"--dead_letters {tmp_path}/l: {tmp_path}/l-00000-of-00001.jsonl is already" in capsys.readouterr().err
    rows.write_text('{"id": "a", "prompt": "x"}\n{"id": "c", "prompt": "z"}\n{"id": "b"}\n')
    assert main([*flags, "--resume"]) == 0
    assert [letter["id"] for letter in rows_of(tmp_path, "l-*.jsonl")] == ["b"]
    assert sorted(row["id"] for row in rows_of(tmp_path, "c-*.jsonl")) == ["a", "c"]


def test_only_prisms_readers_look_for_the_file_that_ends_them() -> None:
    def drain(*flags: str) -> Any:
        each: Any = reader(options(*flags, source=KAFKA))
        return each._drain

    assert drain("--output", "out/c")
    assert drain("--output", TOPIC, "--dead_letters", "out/l")
    assert drain("--output", TOPIC) is None
    assert drain("--output", "out/c", "--runner=FlinkRunner") is None


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--input", "pubsub:prompts"], "pubsub:prompts: takes pubsub:projects/P/subscriptions/S or"),
        (["--input", "pubsub:projects/p/topics/"], "takes pubsub:projects/P/subscriptions/S or"),
        (["--input", "kafka:broker/prompts"], "kafka:broker/prompts: takes kafka:HOST:PORT[,HOST:PORT]/TOPIC"),
        (["--input", "kafka:broker:9092"], "kafka:broker:9092: takes kafka:HOST:PORT"),
        (["--input", f"{KAFKA}?groop=x"], "groop=x: takes kafka:HOST:PORT"),
        (["--input", f"{KAFKA}?begin=middle"], "begin=earliest|latest"),
        (["--input", KAFKA, "--input_format", "csv"], "--input_format csv: messages are jsonl or text"),
        (["--input", KAFKA, "--output", SUBSCRIPTION], "takes a topic to write to, pubsub:projects/P/topics/T"),
        (["--input", "kafka:prompts", "--output", "out/c"], "kafka:prompts: takes kafka:HOST:PORT[,HOST:PORT]/TOPIC"),
        (["--input", "pubsub:prompts", "--output", "out/c"], "pubsub:prompts: takes pubsub:projects/P/subscription"),
        (["--input", KAFKA, "--output", "out/c", "--dead_letters=kafka:l"], "kafka:l: takes kafka:HOST:PORT"),
        (["--input", "kafka:l", "--output", "out/c", "--runner=PortableRunner"], "kafka:l: takes kafka:HOST:PORT"),
        (["--input", "watch:nowhere/*", "--output", "out/c*"], "takes the beginning of the files' paths"),
    ],
)
def test_a_bad_address_is_one_sentence_before_any_warning(flags: list[str], sentence: str, refused: Refused) -> None:
    assert sentence in refused.run("--backend", "fake", "--output", TOPIC, *flags)


SAME = "kafka:[::1]:9092,two:9092/prompts?group=mine"


@pytest.mark.parametrize(
    ("source", "flags", "sentence"),
    [
        (KAFKA, ["--output", KAFKA], f"--output {KAFKA}: is --input too"),
        (KAFKA, ["--output", SAME], f"--output {SAME}: is --input too"),
        ("kafka:localhost:9092/prompts", ["--output", SAME], f"--output {SAME}: is --input too"),
        (KAFKA, ["--output", TOPIC, "--dead_letters", KAFKA], f"--dead_letters {KAFKA}: is --input too"),
        (TOPIC, ["--output", TOPIC], f"--output {TOPIC}: is --input too, so the job would answer its own answers"),
        (TOPIC, ["--output=out/c", "--dead_letters", TOPIC], "would answer its own dead letters"),
        ("watch:w/*.jsonl", ["--output=w/a"], "--output w/a: names files such as w/a-20"),
        ("watch:w/*.jsonl", ["--output=w/a"], "which --input watch:w/*.jsonl matches, so the job would answer its own"),
        ("watch:w/*.jsonl", ["--output=w/a", "--output_format=parquet"], "such as w/a.dead_letters-20"),
        ("watch:w/*.parquet", ["--output=w/a.parquet"], "such as w/a-20"),
        ("watch:w/*.jsonl", ["--output=o/a", "--dead_letters=w/l"], "--dead_letters w/l: names files such as w/l-20"),
        ("watch:w/**", ["--output=w/a"], "--output w/a: names files such as w/a-20"),
        ("watch:w/*/*", ["--output=w/a"], "names files such as w/a.tmp/building-"),
        ("watch:gs://b/**.json", ["--output=gs://b/a"], "names files such as gs://b/.millrace/a.settings.json, which"),
        ("watch:gs://b/*.jsonl", ["--output=gs://b/a"], "--output gs://b/a: names files such as gs://b/a-20"),
    ],
)
def test_a_job_does_not_read_what_it_writes(source: str, flags: list[str], sentence: str, refused: Refused) -> None:
    told = refused.run("--backend", "fake", "--input", source, *flags)
    assert sentence in told
    assert "--input" in told


@pytest.mark.parametrize("how", ["--overwrite", "--resume"])
def test_a_job_of_files_does_not_read_what_an_earlier_run_wrote(how: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    flags = ["--backend", "fake", "--input", f"{tmp_path}/*.jsonl", "--output", f"{tmp_path}/p"]
    assert main(flags) == 0
    before = {path.name: path.read_text() for path in tmp_path.glob("*.jsonl")}
    told = refused.run(*flags, how)
    assert f"*.jsonl matches {tmp_path}/p-00000-of-00001.jsonl, which --output {tmp_path}/p names too" in told
    assert {path.name: path.read_text() for path in tmp_path.glob("*.jsonl")} == before


@pytest.mark.parametrize(
    ("source", "flags"),
    [
        (KAFKA, ["--output", KAFKA.replace("prompts", "answers")]),
        (KAFKA, ["--output", "kafka:three:9092/prompts"]),
        (SUBSCRIPTION, ["--output", TOPIC]),
        ("watch:w/*.jsonl", ["--output=w/out/a"]),
        ("watch:w/*.jsonl", ["--output=w/.a"]),
        ("watch:w/in-*.jsonl", ["--output=w/a"]),
        ("watch:w/*.txt", ["--output=w/a", "--dead_letters=w/a"]),
        ("watch:w/*.jsonl", ["--output=w/a.parquet", "--dead_letters=l/a"]),
        ("watch:w/*.jsonl", ["--output", KAFKA]),
    ],
)
def test_a_job_that_writes_beside_its_input_is_taken(source: str, flags: list[str]) -> None:
    check(options(*flags, source=source))


def test_a_watched_folder_that_is_not_there_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    there, missing = f"watch:{tmp_path}/*.jsonl", f"watch:{tmp_path}/nothere/*.jsonl"
    check(options("--output", TOPIC, source=there))
    assert not caplog.records
    check(options("--output", TOPIC, source=missing))
    assert [each.getMessage() for each in caplog.records] == [f"no such folder yet: {tmp_path}/nothere; waiting for it"]
    caplog.clear()
    check(options("--output", TOPIC, "--runner=FlinkRunner", "--checkpointing_interval=10000", source=missing))
    assert not caplog.records


@pytest.mark.parametrize(
    ("source", "may_go_on", "kept"),
    [("watch:in/*.jsonl", False, False), ("watch:in/*", True, True), (KAFKA, False, True)],
)
def test_what_a_stream_leaves_goes_unless_it_is_nowhere_else(
    source: str, may_go_on: bool, kept: bool, tmp_path: Path
) -> None:
    left, empty = tmp_path / "c.tmp", tmp_path / "l.tmp"
    left.mkdir()
    empty.mkdir()
    (left / "building-1").write_text("rows")
    flags = ["--output", f"{tmp_path}/c.jsonl", "--dead_letters", f"{tmp_path}/l"]
    clear_temporary(options(*flags, source=source), may_go_on=may_go_on)
    assert (left.exists(), empty.exists()) == (kept, False)


def test_what_an_interrupted_job_of_files_left_stays_when_a_stream_is_over(tmp_path: Path) -> None:
    shard = tmp_path / "c.tmp/run/completions-1.jsonl"
    shard.parent.mkdir(parents=True)
    shard.write_text("rows")
    clear_temporary(options("--output", f"{tmp_path}/c", source="watch:in/*.jsonl"))
    assert shard.exists()


@contextmanager
def any_user() -> Iterator[None]:
    """As a user who may not write everywhere, where the tests run as root."""
    before = os.getuid()
    os.setreuid(before or 65534, -1)
    try:
        yield
    finally:
        os.setreuid(before, -1)


@pytest.mark.parametrize("flag", ["--output", "--dead_letters"])
def test_a_folder_that_is_read_only_is_refused_before_the_job(flag: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}')
    # Every user can see and write /tmp. The folder of TMPDIR may be private.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o555)
        asked = options("--output", "/tmp/c", flag, f"{folder}/new/c", source=f"{tmp_path}/prompts.jsonl")
        with any_user(), pytest.raises(ConfigError, match=f"^{flag} {folder}/new/c: the folder {folder} is read-only"):
            check(asked)


@pytest.mark.parametrize("link", ["folder", "file"])
def test_an_output_is_no_input_by_a_link_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, link: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/c-00000-of-00001.jsonl").write_text('{"id": "a", "prompt": "one"}\n')
    if link == "folder":
        (tmp_path / "in").symlink_to("out")
    else:
        (tmp_path / "in").mkdir()
        (tmp_path / "in/a.jsonl").symlink_to("../out/c-00000-of-00001.jsonl")
    told = refused.run("--input", "in/*.jsonl", "--output", "out/c", "--overwrite", "--backend", "fake")
    assert "--input in/*.jsonl matches out/c-00000-of-00001.jsonl, which --output out/c names too" in told
    assert (tmp_path / "out/c-00000-of-00001.jsonl").exists()


@pytest.mark.parametrize("output", ["/dev/null", "/dev/x", "fifo"])
def test_a_device_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, output: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one\n")
    os.mkfifo(tmp_path / "fifo")
    told = refused.run("--input", "a.txt", "--output", output, "--backend", "fake")
    assert told.startswith(f"millrace: --output {output}: ")


def test_dead_letters_may_be_named_as_they_are_by_default(tmp_path: Path) -> None:
    output = Files(f"{tmp_path}/c")
    assert are_same_files(output, Files(f"{tmp_path}/c.dead_letters"))
    assert not are_same_files(output, Files(f"{tmp_path}/d"))

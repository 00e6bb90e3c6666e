"""A job that is resumed adds no rows of another kind to those that are there."""

import json
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.commands.job_commands import extract
from millrace.pipelines.flags.job_options import parse
from millrace.pipelines.places.checks import check
from millrace.pipelines.places.provenance import forget_identity, note_settings, with_identity
from millrace.pipelines.places.sources_and_sinks import files_of
from millrace.transforms.tasks import TaskName

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer", "description": "in EUR"}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    other = {"type": "object", "properties": {"total": {"type": "string"}}}
    (tmp_path / "other.json").write_text(json.dumps(other))
    said = {"title": "A bill", "type": "object", "properties": {"total": {"type": "integer", "description": "net"}}}
    (tmp_path / "said.json").write_text(json.dumps(said))
    (tmp_path / "e.jsonl").write_text('{"text": "a", "answer": {"total": 1}}')
    (tmp_path / "model.json").write_text("{}")
    return tmp_path


def began(task: TaskName, *flags: str) -> None:
    """A job that has written a row."""
    options = parse(["--input", "a.txt", "--output", "out/r", *flags], task)
    files = files_of(options)
    assert files is not None
    note_settings(files, options)
    Path("out/r-00000-of-00001.jsonl").write_text("{}\n")


def resumed(task: TaskName, *flags: str) -> None:
    options = parse(["--input", "a.txt", "--output", "out/r", "--resume", *flags], task)
    check(options)
    files = files_of(options)
    assert files is not None
    note_settings(files, options)


EXTRACT, CLASSIFY = ["--schema", "s.json"], ["--labels", "good,bad"]


@pytest.mark.parametrize(
    ("task", "earlier", "now", "told"),
    [
        ("generate", [], ["--model", "b/c"], "--model b/c: the rows of out/r, to which --resume would add, were made"),
        ("generate", ["--model", "b/c"], ["--model", "b/c", "--revision=v2"], "--revision v2: .* were made with none"),
        ("generate", [], ["--constraint", '{"regex": "a"}'], r'--constraint {"regex":"a"}: .* were made with none'),
        ("generate", [], ["--output_format=parquet"], "--output_format parquet: .* were made with jsonl"),
        ("generate", ["--max_loras=1"], ["--max_loras=1", "--adapter=a"], "--adapter a: "),
        ("score", [], ["--continuations_column", "c"], "--continuations_column c: .* were made with continuations"),
        ("embed", [], ["--pooling", "mean"], "--pooling mean: .* were made with last"),
        ("embed", [], ["--no-normalize"], "--normalize false: .* were made with true"),
        ("extract", EXTRACT, ["--schema", "other.json"], "--schema: the rows of out/r, .* were made with another"),
        ("classify", CLASSIFY, ["--labels", "good,odd"], "--labels good,odd: .* were made with good,bad"),
        ("classify", CLASSIFY, [*CLASSIFY, "--multiple"], "--multiple true: .* were made with false"),
        (
            "classify",
            [*CLASSIFY, "--multiple"],
            [*CLASSIFY, "--multiple", "--threshold", "0.7"],
            "--threshold 0.7: .* were made with 0.5",
        ),
    ],
)
def test_rows_of_other_settings_are_not_added_to(task: TaskName, earlier: list[str], now: list[str], told: str) -> None:
    began(task, *earlier)
    before = Path("out/.millrace/r.settings.json").read_bytes()
    resumed(task, *earlier)
    with pytest.raises(ConfigError, match=rf"^{told}") as error:
        resumed(task, *now)
    assert "takes what out/.millrace/r.settings.json says, or another --output" in str(error.value)
    assert Path("out/.millrace/r.settings.json").read_bytes() == before


KINDS = """
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated
from pydantic import Field
from millrace import Ask, Span

def made(kind):
    return dataclass(type("Row", (), {"__annotations__": {"a": list[kind | None]}}))

Float, Any, Cents = made(float), made(Decimal), made(Annotated[Decimal, Field(decimal_places=2)])
Words, Chars = made(Annotated[str, Span()]), made(Annotated[str, Span.chars])
Text, Asked = made(Annotated[str, Field(min_length=1)]), made(Annotated[Decimal, Ask("how much?")])
"""


@pytest.mark.parametrize(
    ("earlier", "now"), [("Float", "Any"), ("Any", "Cents"), ("Words", "Chars"), ("Text", "Words"), ("Any", "Float")]
)
def test_rows_of_other_types_under_an_equal_schema_are_not_added_to(folder: Path, earlier: str, now: str) -> None:
    (folder / "kinds_of_rows.py").write_text(KINDS)
    began("extract", "--schema", f"kinds_of_rows:{earlier}")
    resumed("extract", "--schema", f"kinds_of_rows:{earlier}")
    with pytest.raises(ConfigError, match=r"^--schema: the rows of out/r, .* were made with another: takes"):
        resumed("extract", "--schema", f"kinds_of_rows:{now}")


def test_a_question_makes_no_other_type(folder: Path) -> None:
    (folder / "kinds_of_rows.py").write_text(KINDS)
    began("extract", "--schema", "kinds_of_rows:Any")
    resumed("extract", "--schema", "kinds_of_rows:Asked")


def test_rows_of_another_command_are_not_added_to() -> None:
    began("extract", *EXTRACT)
    with pytest.raises(ConfigError, match="--resume: millrace extract wrote the rows of out/r, and this is classify: "):
        resumed("classify", *CLASSIFY)


@pytest.mark.parametrize(
    ("task", "earlier", "now"),
    [
        ("generate", [], ["--max_tokens=9", "--temperature=1", "--stop=x"]),
        ("generate", [], ["--model=b/c", "--model_updates=watch:model.json"]),
        ("generate", ["--model_updates=watch:model.json"], ["--model=b/c"]),
        ("extract", EXTRACT, ["--schema", "said.json", "--max_tokens=9", "--examples=e.jsonl"]),
        ("classify", CLASSIFY, ["--labels", "bad,good"]),
    ],
)
def test_what_makes_no_other_rows_may_change(task: TaskName, earlier: list[str], now: list[str]) -> None:
    began(task, *earlier)
    resumed(task, *now)


@pytest.mark.parametrize(
    ("earlier", "now", "told"),
    [
        (["--max_tokens=9"], ["--max_tokens=9"], None),
        (["--max_tokens=9"], ["--max_tokens=8"], "--max_tokens 8 (earlier rows: 9)"),
        (
            [],
            ["--temperature=1", "--system=Be brief"],
            "--temperature 1.0 (earlier rows: not given), --system Be brief ",
        ),
        (["--ignore_eos"], [], "--ignore_eos not given (earlier rows: true)"),
        ([], ["--dtype=float32"], "--dtype float32 (earlier rows: not given)"),
        ([], [f"--system={'long ' * 20}"], "--system another (earlier rows: not given)"),
    ],
)
def test_what_new_rows_get_that_earlier_ones_did_not_is_told(
    earlier: list[str], now: list[str], told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    began("generate", *earlier)
    resumed("generate", *now)
    assert caplog.messages == [] if told is None else f"--resume: new rows get {told}" in caplog.text


def test_a_file_without_settings_that_may_change_says_nothing_of_them(caplog: pytest.LogCaptureFixture) -> None:
    began("generate")
    noted = json.loads(Path("out/.millrace/r.settings.json").read_text())
    del noted["may_change"]
    Path("out/.millrace/r.settings.json").write_text(json.dumps(noted))
    resumed("generate", "--max_tokens=8")
    assert caplog.messages == []


def test_an_output_without_rows_takes_any_settings(folder: Path) -> None:
    began("extract", *EXTRACT)
    (folder / "out/r-00000-of-00001.jsonl").unlink()
    resumed("extract", "--schema", "other.json")
    assert "string" in (folder / "out/.millrace/r.settings.json").read_text()


def test_what_an_interrupted_job_left_counts(folder: Path) -> None:
    began("extract", *EXTRACT)
    left = folder / "out/r.tmp/run/completions-a.jsonl"
    left.parent.mkdir(parents=True)
    (folder / "out/r-00000-of-00001.jsonl").rename(left)
    with pytest.raises(ConfigError, match="--schema: "):
        resumed("extract", "--schema", "other.json")


def test_rows_that_nothing_is_known_of_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    began("extract", *EXTRACT)
    (folder / "out/.millrace/r.settings.json").unlink()
    resumed("extract", "--schema", "other.json")
    assert (
        "there is no out/.millrace/r.settings.json: what the rows of out/r were made with is not known" in caplog.text
    )
    assert not (folder / "out/.millrace/r.settings.json").exists()


def name(*flags: str) -> str:
    """The job's name; the ids of its requests are made of it."""
    options = parse(["--input", "a.txt", *flags])
    return with_identity(files_of(options), options).job


def test_a_job_has_the_name_of_the_one_that_it_resumes() -> None:
    options = parse(["--input", "a.txt", "--output", "out/r"])
    files = files_of(options)
    assert files is not None
    note_settings(files, options)
    again = ["--output", "out/r", "--resume"]
    assert name(*again, "--num_shards=3", "--quiet", "--max_num_seqs=2") == options.job
    others = [name(*again, *flags) for flags in (["--chat=never"], ["--dtype=float32"], ["--model=b/c"])]
    others += [name("--output", "out/r", "--overwrite"), name("--output", "out/r"), name("--output=out/s", "--resume")]
    assert len({*others, options.job}) == 7


def test_after_its_end_a_job_is_another_when_it_is_resumed(folder: Path) -> None:
    again = ["--output=out/r", "--resume"]
    began("generate")
    files = files_of(parse(["--input", "a.txt", *again]))
    (left := folder / "out/r.tmp/run/completions-a.jsonl").parent.mkdir(parents=True)
    left.write_text("{}\n")
    forget_identity(files)
    assert name(*again) == name(*again), "it was interrupted"
    left.unlink()
    forget_identity(files)
    assert name(*again) != name(*again)
    resumed("generate")


def test_rows_of_a_job_that_noted_no_identity_get_one_that_stays(folder: Path) -> None:
    began("generate")
    noted = folder / "out/.millrace/r.settings.json"
    earlier = json.loads(noted.read_text())
    del earlier["identity"]
    noted.write_text(json.dumps(earlier))
    resumed("generate", "--max_tokens=9")
    assert json.loads(noted.read_text()).items() > earlier.items()
    assert name("--output=out/r", "--resume") == name("--output=out/r", "--resume")


@pytest.mark.parametrize("content", [b"{", b'{"a":"\xff"}', b'{"a":' + b"[" * 100_000])
def test_damaged_settings_are_told_with_their_file(folder: Path, content: bytes) -> None:
    began("generate")
    (folder / "out/.millrace/r.settings.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^--resume: out/\.millrace/r\.settings\.json is damaged \(.*; remove it if"):
        resumed("generate")


def test_a_model_in_a_folder_is_the_same_by_any_path(folder: Path) -> None:
    (folder / "models/m").mkdir(parents=True)
    began("generate", "--model", "models/m")
    resumed("generate", "--model", str(folder / "models/m"))


def test_a_stream_without_its_runner_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "inbox").mkdir()
    flags = ["--input", "watch:inbox/*.txt", *EXTRACT, "--output", "out/watch.parquet", "--prism_location=/no/prism"]
    assert extract(flags) == 2
    assert "Prism" in capsys.readouterr().err
    assert not (folder / "out").exists()

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millrace.model_manager.wire.shared_settings import UnmetSetting
from millrace.pipelines.job.summary import Outcome, outcome_of, place_line, print_summary, summary_lines
from millrace.transforms.addresses import Files, parse
from millrace.transforms.elements.near_misses import NearMiss
from millrace.transforms.writing.output_rows import write_rows
from millrace.transforms.writing.typed_rows import typed_name


def outcome(
    completions: int = 10, failed: int = 0, files: list[str] | None = None, dead: list[str] | None = None
) -> Outcome:
    return Outcome(
        completions=completions,
        failed_requests=failed,
        unreadable_rows=0,
        prompt_tokens=2000,
        cached_tokens=500,
        generated_tokens=1000,
        seconds=10.0,
        startup=5.0,
        files=files or [],
        dead_letter_files=dead or [],
    )


def test_counts_and_speeds_leave_the_loading_out() -> None:
    first, second, third, *_ = summary_lines(outcome())
    assert first == "10 completions in 10.0 s, first request to last result: 1.0 rows/s, 100 tokens/s"
    assert second == "2,000 prompt tokens (500 from the cache), 1,000 generated"
    assert third == "startup:      5.0 s (model load included)"


def test_a_job_of_less_than_a_second_has_no_speed_and_one_without_tokens_none_of_tokens() -> None:
    short = summary_lines(dataclasses.replace(outcome(), seconds=0.02))
    assert short[0] == "10 completions in 0.0 s, first request to last result"
    scores = summary_lines(dataclasses.replace(outcome(), generated_tokens=0))
    assert scores[0].endswith("last result: 1.0 rows/s")


@pytest.mark.parametrize("output_format", ["jsonl", "csv"])
def test_it_shows_scores_and_vectors(tmp_path: Path, output_format: str) -> None:
    scores = [{"continuation": "no", "logprob": -3.0}, {"continuation": "yes", "logprob": -0.5}]
    for name, found, shown in (
        ("scores", scores, "  a: yes (-0.50, the likeliest)"),
        ("embedding", [0.25, 0.5, 1.0, 2.0], "  a: 4 numbers, the first 0.250, 0.500, 1.000"),
    ):
        path = tmp_path / f"{name}-00000-of-00001.{output_format}"
        line = json.dumps({"id": "a", name: found}) + "\n"
        if output_format == "csv":
            line = f"id,{name}\na," + '"' + json.dumps(found).replace('"', '""') + '"\n'
        path.write_text(line)
        assert summary_lines(outcome(files=[str(path)]))[-1] == shown


def test_it_says_where_the_output_is_and_shows_a_few(tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": "line\nbreak " + "x" * 200} for number in range(9)]
    path = tmp_path / "out-00000-of-00001.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = summary_lines(outcome(files=[str(path)]))
    assert lines[3] == f"completions:  {path}"
    assert lines[4] == "dead letters: none"
    assert [line.split(":")[0].strip() for line in lines[5:]] == ["0", "1", "2"]
    assert all("line break" in line and len(line) < 120 for line in lines[5:])


def test_extracted_fields_are_shown_alike_from_csv_and_json_lines(tmp_path: Path) -> None:
    answer = {"customer": "Anna Larsen", "quantity": 2, "id": None, "tags": ["a"], "paid": True, "zip": "01234"}
    line = json.dumps({"id": "7", **{typed_name(key): value for key, value in answer.items()}, "confidences": {"a": 1}})
    paths = [tmp_path / "a.csv", tmp_path / "a.jsonl"]
    schema = pa.schema([(name, pa.string()) for name in json.loads(line)])
    for path in paths:
        with path.open("wb") as stream:
            write_rows([line.encode() + b"\n"], stream, str(path), schema)
        (shown,) = summary_lines(outcome(files=[str(path)]))[5:]
        assert json.loads(shown.split(": ", 1)[1]) == answer


def test_it_says_where_the_dead_letters_are_and_why_the_first(tmp_path: Path) -> None:
    path = tmp_path / "out.dead_letters-00000-of-00001.jsonl"
    path.write_text(json.dumps({"id": "a", "error": "PromptTooLong", "reason": "1,200 tokens"}) + "\n")
    lines = summary_lines(outcome(failed=2, dead=[str(path)]))
    assert lines[4] == f"dead letters: 2 rows in {path}, the first: PromptTooLong: 1,200 tokens"


def test_nothing_in_it_steers_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out\x1b[2J-00000-of-00001.jsonl"
    path.write_text(json.dumps({"id": "a\x1b]0;title\x07", "text": "x\x9b31m"}) + "\n")
    letters = tmp_path / "d-00000-of-00001.jsonl"
    letters.write_text(json.dumps({"id": "b", "error": "InvalidRequest", "reason": "no\n\x1b[1m"}) + "\n")
    print_summary(outcome(failed=1, files=[str(path)], dead=[str(letters)]))
    shown = capsys.readouterr().out
    assert all(each.isprintable() for line in shown.split("\n") for each in line)
    assert "  a\ufffd]0;title\ufffd: x\ufffd31m" in shown
    assert "the first: InvalidRequest: no \ufffd[1m\n" in shown


class Counted:
    """The result of a pipeline in which two rows were not to be read."""

    def metrics(self) -> Any:
        return self

    def query(self, _: Any) -> Any:
        counter = SimpleNamespace(key=SimpleNamespace(metric=SimpleNamespace(name="unreadable_rows")), committed=2)
        return {"distributions": [], "counters": [counter]}


@pytest.mark.parametrize(
    ("letters_to", "name"),
    [
        (None, "out.dead_letters-00000-of-00001.jsonl"),
        ("out", "out.dead_letters-00000-of-00001.jsonl"),
        ("./out.jsonl", "out.dead_letters-00000-of-00001.jsonl"),
        ("apart", "apart-00000-of-00001.jsonl"),
        ("kafka:one:9092/letters", "kafka:one:9092/letters"),
    ],
)
def test_it_names_the_place_that_dead_letters_are_really_in(letters_to: str | None, name: str, tmp_path: Path) -> None:
    for each in ("out", "out.dead_letters", "apart"):
        (tmp_path / f"{each}-00000-of-00001.jsonl").write_text('{"id": "a", "error": "E", "reason": "r"}\n')
    letters = None if letters_to is None else parse(letters_to)
    if isinstance(letters, Files):
        letters = Files(f"{tmp_path}/{letters_to}")
    found = outcome_of(Counted(), output=Files(f"{tmp_path}/out"), letters=letters)
    expected = name if name.startswith("kafka:") else f"{tmp_path}/{name}, the first: E: r"
    assert f"dead letters: 2 rows in {expected}" in summary_lines(found)


def test_it_warns_of_columns_that_look_like_misspelt_parameters() -> None:
    found = dataclasses.replace(outcome(), near_misses={NearMiss("max_token", "max_tokens"): 1200})
    warned = "warning:      column 'max_token' of 1,200 rows is no parameter and is passed through: is max_tokens"
    assert any(line.startswith(warned) for line in summary_lines(found))


def test_it_warns_of_settings_of_the_engine_that_did_not_hold() -> None:
    unmet = [UnmetSetting("max_num_seqs", 16, 8), UnmetSetting("num_engines", 2, 1)]
    (warning,) = [
        line
        for line in summary_lines(dataclasses.replace(outcome(), unmet_settings=unmet))
        if line.startswith("warning:      ")
    ]
    assert "max_num_seqs=8 (asked for: 16), num_engines=1 (asked for: 2)" in warning


@pytest.mark.parametrize(("completions", "failed", "status"), [(1, 5, 0), (0, 5, 1), (0, 0, 0)])
def test_a_job_in_which_every_row_failed_has_failed(completions: int, failed: int, status: int) -> None:
    assert outcome(completions, failed).status == status


def test_a_resumed_job_that_is_left_with_bad_rows_alone_has_not() -> None:
    assert dataclasses.replace(outcome(0, 5), earlier_files=["c-0.jsonl"]).status == 0


def test_it_says_that_every_row_failed() -> None:
    failed = outcome(0, 5, dead=[])
    assert summary_lines(failed)[:2] == ["no results: every row failed", "completions:  none"]
    resumed = dataclasses.replace(failed, earlier_files=["c-0.jsonl"])
    told = ["no results beside the earlier ones: every row failed", "completions:  c-0.jsonl"]
    assert summary_lines(resumed)[:2] == told


def test_it_says_that_there_was_nothing_to_do() -> None:
    assert summary_lines(outcome(0)) == ["nothing to do: the input has no rows"]
    resumed = dataclasses.replace(outcome(0), earlier_files=["c-0.jsonl"])
    assert summary_lines(resumed) == [
        "nothing to do: the input has no row that is not completed already",
        "completions:  c-0.jsonl",
    ]


def test_of_a_quiet_job_only_that_every_row_failed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.dead_letters-00000-of-00001.jsonl"
    path.write_text(json.dumps({"id": "a", "error": "InvalidRequest", "reason": "no prompt"}) + "\n")
    print_summary(outcome(), quiet=True)
    assert capsys.readouterr() == ("", "")
    print_summary(outcome(0, failed=2, dead=[str(path)]), quiet=True)
    said = f"every row failed; dead letters: 2 rows in {path}, the first: InvalidRequest: no prompt"
    assert capsys.readouterr() == ("", f"millrace: {said}\n")


def test_a_stopped_job_tells_where_its_completions_are(tmp_path: Path) -> None:
    assert place_line(parse("kafka:host:9092/answers")) == "completions:  kafka:host:9092/answers"
    assert place_line(Files(f"{tmp_path}/c")) == "completions:  none"
    for number in range(2):
        (tmp_path / f"c-20260101T12000{number}Z-20260101T12000{number + 1}Z-00000-of-00001.jsonl").touch()
    first, last = (f"c-20260101T12000{n}Z-20260101T12000{n + 1}Z-00000-of-00001.jsonl" for n in range(2))
    assert place_line(Files(f"{tmp_path}/c.jsonl")) == f"completions:  {tmp_path}/{first} … {last} (2 files)"

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.display import DisplayData

from millrace.model_manager.wire.errors import ConfigError, InvalidRequest
from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.reading.file_ranges import match_files
from millrace.transforms.reading.read_prompts import ReadPrompts
from tests.transforms.running import check, counters, pipeline


def write(folder: Path) -> str:
    (folder / "a.jsonl").write_text('"one"\n{"prompt": 3}\n"two"\n')
    (folder / "b.txt").write_text("three\n")
    return str(folder / "*")


def test_a_bad_row_goes_to_the_dead_letters_and_never_ends_the_job(tmp_path: Path) -> None:
    with pipeline() as p:
        prompts, dead = p | ReadPrompts(write(tmp_path)).with_exception_handling()
        check(prompts, lambda rows: sorted(row.text for row in rows) == ["one", "three", "two"], "prompts")
        check(dead, lambda rows: [row.row for row in rows] == [{"prompt": 3}], "dead letters")
    assert counters(p.result)["unreadable_rows"] == 1


@pytest.mark.parametrize("handled", [False, True])
def test_a_bad_row_ends_the_job_that_is_to_fail_fast(tmp_path: Path, handled: bool) -> None:
    reading = ReadPrompts(write(tmp_path), fail_fast=handled)
    with pytest.raises(InvalidRequest, match=r"a\.jsonl@6: `prompt` is a number"), pipeline() as p:
        _ = p | (reading.with_exception_handling() if handled else reading)


def test_outputs_have_their_types(tmp_path: Path) -> None:
    with pipeline() as p:
        prompts, dead = p | ReadPrompts(write(tmp_path)).with_exception_handling()
        assert (prompts.element_type, dead.element_type) == (Prompt, DeadLetter)


def test_patterns_that_overlap_read_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pipeline() as p:
        prompts = p | ReadPrompts([f"{tmp_path}/*.txt", f"{tmp_path}/a*"])
        check(prompts, lambda rows: [row.text for row in rows] == ["one"])


def test_ids_are_the_same_from_run_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with pipeline() as p:
            prompts = p | ReadPrompts("b.*")
            check(prompts, lambda rows: [row.id for row in rows] == ["b.txt@0"])


@pytest.mark.parametrize(("name", "example"), [("a.csv.gz", "*.csv.gz"), ("a.JSONL", "*.JSONL"), ("a.md", "*")])
def test_a_folder_is_refused_with_an_example_of_what_is_taken(tmp_path: Path, name: str, example: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match="is a folder; takes files or globs") as refused, pipeline() as p:
        _ = p | ReadPrompts(f"{tmp_path}/")
    assert str(refused.value).endswith(f"for example '{tmp_path}/{example}'")


def test_a_pattern_that_matches_nothing_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"), pipeline() as p:
        _ = p | ReadPrompts(f"{tmp_path}/*.jsonl")


def test_a_file_of_no_known_format_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.data").touch()
    with pytest.raises(ConfigError, match=r"a\.data.*input_format"), pipeline() as p:
        _ = p | ReadPrompts(f"{tmp_path}/*")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes jsonl, text, csv, parquet"):
        ReadPrompts("a", input_format="xml")


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="nowhere"), pipeline() as p:
        _ = p | ReadPrompts("nowhere://a/b.txt")


def test_display_data_names_the_files() -> None:
    items = DisplayData.create_from(ReadPrompts(["a", "b"]), extra_items={}).items
    assert {item.key: item.value for item in items}["patterns"] == "a, b"


def test_rows_are_read_in_order_whatever_order_files_are_split_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "x" * 1000
    for name in "cab":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {number:03} {line}\n" for number in range(100)))
    orders = (match_files, lambda patterns: match_files(patterns)[::-1])
    for order in orders:
        monkeypatch.setattr("millrace.transforms.reading.read_prompts.match_files", order)
        read = tmp_path / f"read-{orders.index(order)}"
        with pipeline() as p:
            _ = p | ReadPrompts(f"{tmp_path}/*.txt") | beam.Map(_note, str(read))
        assert read.read_text().split() == [f"{name}{number:03}" for name in "abc" for number in range(100)]


def _note(prompt: Prompt, path: str) -> None:
    name, number, _ = str(prompt.text).split()
    with Path(path).open("a") as file:
        file.write(f"{name}{number} ")


@pytest.mark.slow
def test_worker_processes_share_the_ranges(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{n} {'x' * 1000}\n" for n in range(1000)))
    flags = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    assert PipelineOptions(flags)
    with pipeline(*flags) as p:
        check(p | ReadPrompts(f"{tmp_path}/a.txt"), lambda rows: len({row.id for row in rows}) == len(rows) == 1000)

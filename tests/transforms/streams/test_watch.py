"""Looks at a folder: which files are complete, which times their rows have, and that none is late."""

import glob
import os
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.watch import PollResult
from apache_beam.transforms.display import DisplayData
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.elements.beam_metrics import failures_in
from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.streams import watch
from millrace.transforms.streams.watch import PollPatterns, WatchPrompts
from tests.transforms.running import check, counters, pipeline

START = 1_700_000_000.0
"""When the watch began."""


class Folder:
    """A folder and a clock, looked at by a watch that looks every 10 seconds and takes files to settle in 2."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._look = PollPatterns(interval=10.0, settle=2.0)
        self._now = START
        patch.setattr(watch, "wall_clock", lambda: self._now)

    def put(self, name: str, modified: float, content: str = "a prompt\n") -> None:
        """`modified`: seconds after the start."""
        (self.path / name).write_text(content)
        os.utime(self.path / name, (START + modified, START + modified))

    def look(self, after: float) -> dict[str, float]:
        """Names of complete files and their timestamps in seconds after the start, if their own."""
        return {Path(output.value.path).name: float(output.timestamp) - START for output in self.result(after).outputs}

    def result(self, after: float) -> PollResult[FileMetadata]:
        self._now = START + after
        return self._look(([f"{self.path}/*.txt", f"{self.path}/a*"], START))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path, monkeypatch)


def test_a_file_is_complete_when_it_was_left_alone_for_long_enough(folder: Folder) -> None:
    folder.put("written.txt", 19.0)
    folder.put("done.txt", 18.0)
    assert folder.look(20.0).keys() == {"done.txt"}
    assert folder.look(21.0).keys() == {"done.txt", "written.txt"}


def test_a_file_without_content_is_not_complete(folder: Folder) -> None:
    folder.put("made.txt", 0.0, content="")
    assert folder.look(100.0) == {}


def test_a_file_of_another_name_is_not_found(folder: Folder) -> None:
    folder.put("b.part", 0.0)
    folder.put(".hidden.txt", 0.0)
    assert folder.look(100.0) == {}


def test_an_object_is_complete_as_soon_as_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "wall_clock", lambda: START)
    monkeypatch.setattr(watch, "match", lambda _: [FileMetadata("gs://b/a.jsonl", 0, START)])
    (output,) = PollPatterns(interval=10.0, settle=2.0)((["gs://b/*"], START)).outputs
    assert output.value.path == "gs://b/a.jsonl"


def test_files_that_were_there_at_the_start_keep_their_times(folder: Folder) -> None:
    folder.put("old.txt", -1_000_000.0)
    assert folder.look(0.5) == {"old.txt": -1_000_000.0}
    assert folder.result(0.5).watermark == MIN_TIMESTAMP


def test_a_file_that_comes_has_the_time_when_it_was_modified(folder: Folder) -> None:
    folder.put("new.txt", 95.0)
    assert folder.look(100.0) == {"new.txt": 95.0}


def test_a_file_that_was_modified_long_ago_and_moved_here_now_is_not_late(folder: Folder) -> None:
    folder.put("moved.txt", -1_000_000.0)
    result = folder.result(100.0)
    assert [output.timestamp for output in result.outputs] == [result.watermark]
    assert Timestamp(START) < result.watermark < Timestamp(START + 100)


def test_the_watermark_waits_for_a_file_that_was_not_complete_at_the_last_look(folder: Folder) -> None:
    before = folder.result(100.0).watermark
    assert before < Timestamp(START + 98.0)  # what is complete at the next look was modified after that
    folder.put("slow.txt", 98.5)
    assert folder.look(111.0) == {"slow.txt": 98.5}


@given(
    looks=st.lists(st.floats(min_value=0.001, max_value=100.0), min_size=1, max_size=8),
    modified=st.lists(st.floats(min_value=-1e6, max_value=500.0), max_size=8),
)
def test_no_file_is_late_whenever_it_is_found(looks: list[float], modified: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        files = [FileMetadata(f"/{number}", 1, START + each) for number, each in enumerate(modified)]
        patch.setattr(watch, "match", lambda _: files)
        now, watermark = START, MIN_TIMESTAMP
        look = PollPatterns(interval=10.0, settle=2.0)
        for gap in looks:  # which may be shorter than the interval: a runner need not wait
            now += gap
            patch.setattr(watch, "wall_clock", lambda now=now: now)
            result = look((["/*"], START))
            assert all(output.timestamp >= watermark for output in result.outputs)
            assert result.watermark >= watermark
            watermark = result.watermark


def watched(pattern: str | list[str], **options: Any) -> WatchPrompts:
    return WatchPrompts(pattern, interval=0.2, settle=0.0, stop_after=0.4, **options)


def test_rows_come_as_prompts_with_the_ids_that_batches_give_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "mine", "prompt": "one", "max_tokens": 3}\n"two"\n')
    with pipeline() as p:
        prompts = p | watched(f"{tmp_path}/*.jsonl")

        def holds(found: list[Prompt]) -> bool:
            one, two = sorted(found, key=lambda prompt: str(prompt.text))
            return (one.id, one.params, two.id) == ("mine", {"max_tokens": 3}, f"{tmp_path}/a.jsonl@49")

        check(prompts, holds)


def test_a_file_that_two_patterns_find_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pipeline() as p:
        prompts = p | watched([f"{tmp_path}/*.txt", f"{tmp_path}/a*"])
        check(prompts, lambda found: [prompt.text for prompt in found] == ["one"])


def test_rows_that_are_no_prompts_and_files_of_no_format_are_dead_letters(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\n{no json\n')
    (tmp_path / "b.unknown").write_text("x\n")
    with pipeline() as p:
        prompts, letters = p | watched(f"{tmp_path}/*").with_exception_handling()
        check(prompts, lambda found: [prompt.text for prompt in found] == ["one"], "prompts")

        def holds(found: list[DeadLetter]) -> bool:
            row, file = sorted(found, key=lambda letter: letter.source)
            return (
                "not JSON" in row.reason and "no format is known" in file.reason and file.id == f"{tmp_path}/b.unknown"
            )

        check(letters, holds, "dead letters")


def test_a_row_that_is_no_prompt_fails_the_job_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{no json\n")
    with pytest.raises(Exception, match="not JSON"), pipeline() as p:
        _ = p | watched(f"{tmp_path}/*", fail_fast=True).with_exception_handling()


def test_a_file_that_is_gone_when_it_is_read_is_a_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = FileMetadata(f"{tmp_path}/gone.jsonl", 5, START)
    monkeypatch.setattr(watch, "match", lambda _: [gone])
    with pipeline() as p:
        _, letters = p | watched(f"{tmp_path}/*").with_exception_handling()
        check(letters, lambda found: [letter.source for letter in found] == [gone.path])
    assert failures_in(counters(p.result)) == {"UnreadableFile": 1}


def test_a_file_that_is_moved_away_during_a_look_is_not_found(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.put("here.txt", 0.0)
    gone = str(folder.path / "gone.txt")
    listed = glob.glob
    monkeypatch.setattr(glob, "glob", lambda *args, **named: [gone, *listed(*args, **named)])
    assert folder.look(100.0).keys() == {"here.txt"}


@pytest.mark.parametrize(
    ("patterns", "options", "names"),
    [
        ([], {}, "input"),
        ("nowhere://a/*", {}, "nowhere"),
        ("a/*", {"interval": 0}, "interval"),
        ("a/*", {"settle": -1}, "settle"),
        ("a/*", {"stop_after": 0}, "stop_after"),
        ("a/*", {"input_format": "xml"}, "input_format"),
    ],
)
def test_impossible_settings_are_refused(patterns: Any, options: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        WatchPrompts(patterns, **options)


def test_display_data_names_the_patterns() -> None:
    items = DisplayData.create_from(WatchPrompts("a/*.jsonl", interval=7.0), extra_items={}).items
    shown = {item.key: item.value for item in items}
    assert (shown["patterns"], shown["interval"]) == ("a/*.jsonl", 7.0)

from pathlib import Path
from typing import Any

import pytest
from apache_beam.transforms.window import GlobalWindow, IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming
from hypothesis import given
from hypothesis import strategies as st

from millrace.transforms.writing.finalize import MakeFile, PlanFiles, PlannedFile, WrittenFile, grouped
from millrace.transforms.writing.output_files import OutputFiles, RunFiles
from millrace.transforms.writing.shards import Shard

LINE = b'{"id":"a","text":"t","finish_reason":"stop","model":"m","columns":{}}\n'


def shard(size: int) -> Shard:
    return Shard("completions", "path", 1, size)


@given(st.lists(st.integers(1, 2**29)), st.none() | st.integers(1, 5))
def test_groups_hold_every_shard_once_and_none_is_empty(sizes: list[int], num_shards: int | None) -> None:
    groups = grouped([shard(size) for size in sizes], num_shards)
    assert sorted(each.size for group in groups for each in group) == sorted(sizes)
    assert all(groups)
    assert num_shards is None or len(groups) <= num_shards


def test_small_shards_go_together_up_to_a_size() -> None:
    sizes = [[each.size for each in group] for group in grouped([shard(100 * 2**20)] * 5, None)]
    assert [len(group) for group in sizes] == [2, 2, 1]


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_file_is_made_once_however_often_the_step_is_repeated(tmp_path: Path, extension: str, count: int) -> None:
    sources = [tmp_path / f"shard{number}" for number in range(count)]
    for source in sources:
        source.write_bytes(LINE)
    target = tmp_path / f"out-00000-of-00001.{extension}"
    planned = PlannedFile("completions", str(target), [str(source) for source in sources], count)
    make = MakeFile(OutputFiles(str(tmp_path / "out")))
    assert list(make.process(planned)) == [WrittenFile("completions", str(target), count)]
    content = target.read_bytes()
    assert list(make.process(planned)) == [WrittenFile("completions", str(target), count)]
    assert target.read_bytes() == content
    assert not any(source.exists() for source in sources)


def test_shards_that_went_into_no_file_are_not_removed(tmp_path: Path) -> None:
    left = tmp_path / "shard1"
    left.write_bytes(LINE)
    planned = PlannedFile("completions", str(tmp_path / "out"), [str(tmp_path / "shard0"), str(left)], 2)
    with pytest.raises(FileNotFoundError, match="1 of its shards"):
        list(MakeFile(OutputFiles(str(tmp_path / "out"))).process(planned))
    assert left.exists()


@pytest.mark.parametrize("window", [GlobalWindow(), IntervalWindow(0, 60)])
def test_each_pane_of_a_window_has_its_files(tmp_path: Path, window: Any) -> None:
    plan = PlanFiles(RunFiles(OutputFiles(str(tmp_path / "out")), "jsonl"), None)
    panes = [PaneInfo(index == 0, False, PaneInfoTiming.EARLY, index, -1) for index in range(3)]
    paths = [file.path for pane in panes for file in plan.process(("completions", [shard(1)]), window, pane)]
    assert len(set(paths)) == 3


def test_an_attempt_that_was_broken_off_while_it_cleaned_up_is_finished(tmp_path: Path) -> None:
    target, left = tmp_path / "out-00000-of-00001.jsonl", tmp_path / "shard1"
    target.write_bytes(LINE * 2)
    left.write_bytes(LINE)
    planned = PlannedFile("completions", str(target), [str(tmp_path / "shard0"), str(left)], 2)
    assert len(list(MakeFile(OutputFiles(str(tmp_path / "out"))).process(planned))) == 1
    assert target.read_bytes() == LINE * 2
    assert not left.exists()

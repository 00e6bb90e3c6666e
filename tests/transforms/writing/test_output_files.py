from pathlib import Path

import pytest
from apache_beam.transforms.window import GlobalWindow, IntervalWindow

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.writing.output_files import Kind, OutputFiles, window_label

WINDOW = window_label(IntervalWindow(0, 60.5))


@pytest.mark.parametrize("kind", ["completions", "dead_letters"])
@pytest.mark.parametrize(
    "labels",
    [[], ["resume12"], ["salvaged"], ["resume1", "salvaged"], [WINDOW], ["resume1", WINDOW, "pane3"], ["pane3"]],
)
def test_every_name_that_is_written_is_found_again(tmp_path: Path, kind: Kind, labels: list[str]) -> None:
    files = OutputFiles(str(tmp_path / "run"))
    path = files.shard(kind, labels, 0, 1, "jsonl")
    Path(path).touch()
    assert files.existing(kind) == [path]


@pytest.mark.parametrize("other", ["run-2", "run-b", "run-resumed", "run-20240101", "run.dead_letters-2"])
def test_the_files_of_an_output_whose_name_begins_alike_are_not_its_own(tmp_path: Path, other: str) -> None:
    theirs = OutputFiles(str(tmp_path / other))
    for kind in ("completions", "dead_letters"):
        Path(theirs.shard(kind, [], 0, 1, "jsonl")).touch()
    ours = OutputFiles(str(tmp_path / "run"))
    assert ours.existing("completions") == ours.existing("dead_letters") == []
    ours.check("refuse")
    assert ours.next_label() == "resume1"
    with pytest.raises(ConfigError, match="already there"):
        theirs.check("refuse")


def test_the_global_window_has_no_label() -> None:
    assert window_label(GlobalWindow()) == ""

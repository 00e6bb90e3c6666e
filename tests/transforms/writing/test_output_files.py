from pathlib import Path

import pytest
from apache_beam.transforms.window import GlobalWindow, IntervalWindow

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.writing.output_files import OutputFiles, OutputKind, window_label

WINDOW = window_label(IntervalWindow(0, 60.5))


@pytest.mark.parametrize("kind", ["completions", "dead_letters"])
@pytest.mark.parametrize(
    "labels",
    [[], ["resume12"], ["salvaged"], ["resume1", "salvaged"], [WINDOW], ["resume1", WINDOW, "pane3"], ["pane3"]],
)
def test_every_name_that_is_written_is_found_again(tmp_path: Path, kind: OutputKind, labels: list[str]) -> None:
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


def noted(folder: Path, *names: str) -> None:
    """Finished outputs of jobs, which noted their settings."""
    for name in names:
        files = OutputFiles(str(folder / name))
        Path(files.settings).parent.mkdir(exist_ok=True)
        Path(files.settings).write_text("{}")
        Path(files.shard("completions", [], 0, 1, "jsonl")).touch()


@pytest.mark.parametrize("other", ["run-resume1", "run.dead_letters", "run-salvaged", f"run-{WINDOW}"])
def test_another_jobs_output_with_the_name_of_ours_is_not_ours(tmp_path: Path, other: str) -> None:
    noted(tmp_path, "run", other)
    ours, theirs = OutputFiles(str(tmp_path / "run")), OutputFiles(str(tmp_path / other))
    assert ours.existing("completions") == [ours.shard("completions", [], 0, 1, "jsonl")]
    assert ours.existing("dead_letters") == []
    assert theirs.existing("completions") == [theirs.shard("completions", [], 0, 1, "jsonl")]


def test_a_resumed_runs_files_are_not_named_as_another_outputs(tmp_path: Path) -> None:
    noted(tmp_path, "run", "run-resume1")
    files = OutputFiles(str(tmp_path / "run"))
    files.check("resume")
    assert files.next_label() == "resume2"


@pytest.mark.parametrize("other", ["run.dead_letters", "run-salvaged"])
def test_a_job_that_could_write_over_another_output_is_refused(tmp_path: Path, other: str) -> None:
    noted(tmp_path, "run", other)
    with pytest.raises(ConfigError, match=f"^output=.*run': .*{other}-00000-of-00001.jsonl belongs to another output"):
        OutputFiles(str(tmp_path / "run")).check("overwrite")


def test_a_job_named_as_what_a_resumed_run_added_is_refused(tmp_path: Path) -> None:
    noted(tmp_path, "run")
    Path(OutputFiles(str(tmp_path / "run")).shard("completions", ["resume1"], 0, 1, "jsonl")).touch()
    with pytest.raises(ConfigError, match="belongs to another output"):
        OutputFiles(str(tmp_path / "run-resume1")).check("overwrite")


@pytest.mark.parametrize("output", [".", "..", "out/.", "out/.."])
def test_a_folder_alone_is_no_output(output: str) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        OutputFiles(output)


@pytest.mark.parametrize("prefix", ["run", "/run", "out/run", "gs://bucket/run"])
def test_a_file_is_named_as_ours_in_our_own_folder_alone(prefix: str) -> None:
    files = OutputFiles(prefix)
    assert files.may_name(f"{prefix}-00000-of-00001.jsonl")
    assert files.may_name(files.settings)
    assert not files.may_name(f"/elsewhere{prefix.strip('/')}-00000-of-00001.jsonl")
    assert not files.may_name(f"{'' if prefix == '/run' else '/'}run-00000-of-00001.jsonl")

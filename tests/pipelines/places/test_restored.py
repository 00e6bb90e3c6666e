"""Files beside an output after a job that wrote no row of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError, ModelError
from millrace.pipelines.flags.job_options import parse
from millrace.pipelines.interrupts import Interrupted
from millrace.pipelines.places.claims import claimed
from millrace.pipelines.places.provenance import note_settings
from millrace.pipelines.places.restored import restored_if_nothing_written
from millrace.pipelines.places.sources_and_sinks import files_of
from millrace.transforms.writing.output_files import OutputFiles

ENDS = [ConfigError("no Prism"), ModelError("no such model"), RuntimeError("a row failed"), Interrupted("interrupted")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(*flags: str, ends: Callable[[OutputFiles], None]) -> None:
    """A job that prepares its output, and then does what `ends` does."""
    options = parse(["--input", "a.txt", "--output", "out/r", *flags])
    files = files_of(options)
    assert files is not None
    with claimed(options), restored_if_nothing_written(options):
        if options.if_exists == "overwrite":
            files.supersede()
        note_settings(files, options)
        ends(files)


def job_ended_by(error: BaseException, *flags: str, row: bool = False) -> None:
    """`row`: one was written before."""

    def ends(files: OutputFiles) -> None:
        if row:
            shard = Path(files.temporary_shard("run", "completions", "a"))
            shard.parent.mkdir(parents=True)
            shard.write_text("{}\n")
        raise error

    with pytest.raises(type(error)):
        job(*flags, ends=ends)


def finished(files: OutputFiles) -> None:
    Path(files.shard("completions", [], 0, 1, "jsonl")).write_text("{}\n")


def state(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize("error", ENDS)
def test_a_job_without_a_row_leaves_nothing(folder: Path, error: BaseException) -> None:
    job_ended_by(error)
    assert state(folder) == {}


@pytest.mark.parametrize("error", ENDS)
def test_an_overwriting_job_without_a_row_leaves_all_as_it_was(folder: Path, error: BaseException) -> None:
    job("--max_tokens", "1", ends=finished)
    before = state(folder)
    job_ended_by(error, "--overwrite", "--model", "other")
    assert state(folder) == before


def test_a_job_that_wrote_rows_keeps_them_and_what_it_noted(folder: Path) -> None:
    job_ended_by(RuntimeError("the disk is full"), row=True)
    assert (folder / "out/.millrace/r.settings.json").exists()
    assert list((folder / "out/r.tmp").glob("*/completions-*"))


def test_a_mark_of_an_earlier_overwriting_job_stays() -> None:
    job(ends=finished)
    job_ended_by(Interrupted("interrupted"), "--overwrite", row=True)
    job_ended_by(Interrupted("interrupted"), "--overwrite")
    assert OutputFiles("out/r").current("completions") == []


def test_a_job_on_an_empty_input_leaves_nothing(folder: Path) -> None:
    job(ends=lambda _: None)
    assert state(folder) == {}


def test_a_job_that_may_go_on_elsewhere_keeps_what_it_noted(folder: Path) -> None:
    job_ended_by(Interrupted("detached"), "--runner", "FlinkRunner")
    assert (folder / "out/.millrace/r.settings.json").exists()

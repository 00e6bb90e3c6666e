"""What a job came to in all its launches, over kills of its launcher, its manager and its engines."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EndedModel, EngineStats, EngineTotals, JobStatus, ModelStatus
from millrace.pipelines.flags.job_options import parse
from millrace.pipelines.job import launches
from millrace.pipelines.job.launches import Launches, _noted
from millrace.pipelines.places.provenance import write_note
from millrace.transforms.writing.output_files import OutputFiles
from tests.job_commands import job_command, started
from tests.json_lines import rows_of, write_rows
from tests.pipelines.job.job_processes import caught

ROWS, TOKENS = 200, 20


def status(manager: str, computed: int, *, restarts: int = 0, answered: int = 0) -> Status:
    stats = EngineStats(prompt_tokens=computed + 5, cached_tokens=15, generated_tokens=10)
    model = ModelStatus("k", "m", "ready", [], 1, restarts, 0, None, stats)
    jobs = [JobStatus("j", prompt_tokens=answered), JobStatus("other", prompt_tokens=77)]
    return Status(1, 0.0, [model], jobs, [], instance=manager)


def look(launches: Launches, seen: Status, *, begins: bool = False) -> None:
    launches.look(seen, {"m"}, "j", begins=begins)


def test_what_was_computed_before_a_launch_is_not_the_jobs() -> None:
    launches = Launches("i")
    look(launches, status("one", 100, answered=3), begins=True)
    look(launches, status("one", 130, answered=5))
    assert (launches.computed, launches.answered, launches.managers) == (30, 2, 1)


def test_a_manager_that_comes_during_a_launch_counts_from_nothing() -> None:
    launches = Launches("i")
    look(launches, status("one", 50))
    look(launches, status("two", 20, restarts=1, answered=8))
    look(launches, status("two", 90, restarts=1, answered=9))
    look(launches, status("three", 30, answered=1))
    assert (launches.computed, launches.managers, launches.restarts, launches.answered) == (50 + 90 + 30, 3, 1, 10)


def test_the_next_launch_goes_on_from_the_note_and_a_model_that_ended_counts() -> None:
    launches = Launches("i")
    look(launches, status("one", 10))
    look(launches, status("one", 40))
    noted = msgspec.json.decode(msgspec.json.encode(launches), type=Launches)
    look(noted, status("one", 60), begins=True)
    ended = EndedModel("k", "m", 0, EngineTotals(generated_tokens=75), {})
    look(noted, msgspec.structs.replace(status("one", 60), models=[], ended=[ended]))
    assert noted.computed == 75
    look(noted, status("two", 1000), begins=True)
    assert noted.computed == 75


def test_a_look_that_ends_after_the_job_is_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of a job that is done was removed by then."""
    monkeypatch.setattr(launches, "_LOOK", 0.01)
    options = parse(["--input", "a.jsonl", "--output", f"{tmp_path}/c"])
    ended = threading.Event()

    def answered_late() -> Status:
        ended.set()
        return status("one", 5)

    noted = launches._Noted(options, OutputFiles(f"{tmp_path}/c"), answered_late)
    noted.run(0.0, ended)
    assert noted.launches.managers == 1
    assert list(tmp_path.iterdir()) == []


def noted_in(folder: Path) -> launches._Noted:
    options = parse(["--input", "a.jsonl", "--output", f"{folder}/c"])
    return launches._Noted(options, OutputFiles(f"{folder}/c"), lambda: status("one", 5))


def test_a_note_that_a_slow_store_still_writes_at_the_jobs_end_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "_ENDS_WITHIN", 300.0)
    noted = noted_in(tmp_path)
    assert noted._write()
    end = threading.Thread(target=noted.forget)

    def slow(path: str, content: bytes) -> None:
        end.start()
        end.join(0.1)  # it ends here only if it does not wait for this note
        write_note(path, content)

    monkeypatch.setattr(launches, "write_note", slow)
    noted._write()
    end.join()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_store_that_hangs_does_not_hold_the_jobs_end_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launches, "_ENDS_WITHIN", 0.01)
    noted = noted_in(tmp_path)
    with noted._writing:
        noted.forget()
    assert "c.launches.json: may stay: it is still being written" in caplog.text
    assert not noted._write()


def job(prompts: Path, output: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = job_command("run", prompts, output / "c")
    quick = ["--backend=fake", f"--max_tokens={TOKENS}", "--ignore_eos", "--no-report", "--linger=300"]
    return started([*command, *quick, "--hang_timeout=120", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


DAMAGED: dict[str, Callable[[Path], object]] = {
    "no UTF-8": lambda note: note.write_bytes(b'{"identity":"\xff\xfe"}'),
    "nested": lambda note: note.write_text('{"other":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "negative": lambda note: note.write_text('{"identity":"i","computed":-1}'),
    "large": lambda note: note.write_bytes(b" " * 2**21),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_note_that_is_none_counts_for_nothing(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    files = OutputFiles(str(tmp_path / "out" / "c"))
    note = Path(files.launches)
    note.parent.mkdir(parents=True)
    DAMAGED[damage](note)
    assert _noted(files, "i") == Launches("i")
    assert f"{note} is damaged, so earlier launches are not counted" in caplog.text


def test_a_note_is_written_through_no_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "note.json.new").symlink_to(other)
    write_note(str(tmp_path / "note.json"), b"{}")
    assert (other.read_text(), (tmp_path / "note.json").read_text()) == ("mine", "{}")


@pytest.mark.slow
def test_a_resumed_job_counts_what_was_computed_before_its_launcher_was_killed(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed twice, so all launches together compute each row once."""
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.05")
    rows = write_rows(tmp_path / "rows.jsonl", ({"id": f"p{n}", "prompt": f"question {n}"} for n in range(ROWS)))
    output, note = tmp_path / "out", tmp_path / "out/.millrace/c.launches.json"
    with caught(lambda: job(rows, output), runtime, output, ROWS, also=note.exists) as (process, _):
        process.kill()
    with job(rows, output, "--resume") as process:
        shown, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    usage = [row["usage"] for row in rows_of(output, "c-*.jsonl")]
    delivered = sum(each["prompt_tokens"] - each["cached_tokens"] + each["completion_tokens"] for each in usage)
    told = re.search(r"launches:     2, with 1 manager and 0 restarts of engines: ([\d,]+) tokens? computed", shown)
    assert told, shown
    assert int(told[1].replace(",", "")) == delivered
    assert f"computed, {delivered:,} of them for answers" in shown
    assert not note.exists(), "the job is done"

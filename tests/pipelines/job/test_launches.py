"""What a job came to in all its launches, over kills of its launcher, its manager and its engines."""

from __future__ import annotations

import re
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EndedModel, EngineStats, EngineTotals, JobStatus, ModelStatus
from millrace.pipelines.job.launches import Launches
from tests.job_commands import job_command, started
from tests.json_lines import rows_of, write_rows
from tests.pipelines.job.job_processes import caught

ROWS, TOKENS = 200, 20


def status(pid: int, computed: int, *, restarts: int = 0, uptime: float = 0.0, answered: int = 0) -> Status:
    stats = EngineStats(prompt_tokens=computed + 5, cached_tokens=15, generated_tokens=10)
    model = ModelStatus("k", "m", "ready", [], 1, restarts, 0, None, stats)
    jobs = [JobStatus("j", prompt_tokens=answered), JobStatus("other", prompt_tokens=77)]
    return Status(pid, uptime, [model], jobs, [])


def look(launches: Launches, seen: Status, now: float = 0.0) -> None:
    launches.look(seen, {"m"}, "j", now)


def test_what_was_computed_before_the_first_look_is_not_the_jobs() -> None:
    launches = Launches("i")
    look(launches, status(1, 100, answered=3))
    look(launches, status(1, 130, answered=5))
    assert (launches.computed, launches.answered, launches.managers) == (30, 2, 1)


def test_a_manager_that_takes_anothers_place_counts_from_nothing_also_with_its_pid() -> None:
    launches = Launches("i")
    look(launches, status(1, 0), now=100)
    look(launches, status(1, 50, uptime=30), now=130)
    look(launches, status(2, 20, restarts=1, answered=8), now=140)
    look(launches, status(2, 90, restarts=1, uptime=1, answered=9), now=200)
    assert (launches.computed, launches.managers, launches.restarts, launches.answered) == (50 + 20 + 90, 3, 2, 17)


def test_the_next_launch_goes_on_from_the_note_and_a_model_that_ended_counts() -> None:
    launches = Launches("i")
    look(launches, status(1, 10))
    look(launches, status(1, 40))
    noted = msgspec.json.decode(msgspec.json.encode(launches), type=Launches)
    seen = status(1, 60)
    ended = EndedModel("k", "m", 0, EngineTotals(generated_tokens=65), {})
    look(noted, msgspec.structs.replace(seen, models=[], ended=[ended]))
    assert noted.computed == 55


def job(prompts: Path, output: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = job_command("run", prompts, output / "c")
    quick = ["--backend=fake", f"--max_tokens={TOKENS}", "--ignore_eos", "--no-report", "--linger=300"]
    return started([*command, *quick, "--hang_timeout=120", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_resumed_job_counts_what_was_computed_before_its_launcher_was_killed(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed twice, so all launches together compute each row once."""
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.05")
    rows = write_rows(tmp_path / "rows.jsonl", ({"id": f"p{n}", "prompt": f"question {n}"} for n in range(ROWS)))
    output, note = tmp_path / "out", tmp_path / "out/.millrace/c.launches.json"
    with caught(lambda: job(rows, output), runtime, output, ROWS) as (process, _):
        assert note.exists()
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

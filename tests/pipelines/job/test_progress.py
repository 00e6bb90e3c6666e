import io
import itertools
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EngineStats, JobStatus, ModelStatus
from millrace.pipelines.job import progress
from millrace.pipelines.job.polling import counted_since
from millrace.pipelines.job.progress import Speed, shown_progress
from millrace.transforms.reading.count import RowCount
from millrace.transforms.streams.readers import ReaderDoFn, tell_reading, when_reading
from millrace.transforms.streams.watch import PollPatterns
from tests.terminals import on_terminal


def status(*jobs: JobStatus, state: str = "ready", outstanding: int = 0) -> Status:
    model = ModelStatus("k", "org/m", state, [1], 1, 0, outstanding, None, EngineStats())
    return Status(pid=1, uptime=1.0, models=[model], jobs=list(jobs), processes=[])


def job(finished: int, failed: int = 0, tokens: int = 0) -> JobStatus:
    return JobStatus("j", finished=finished, failed=failed, generated_tokens=tokens)


def describe(found: Status | None, name: str, speed: Speed, now: float) -> str:
    """All that is told, as one line."""
    return str(progress.describe(found, name, speed, now))


def test_before_the_first_request_it_says_what_is_waited_for() -> None:
    assert describe(None, "j", Speed(None), 0.0) == "starting"
    assert describe(status(state="loading"), "j", Speed(None), 0.0) == "loading org/m"
    assert describe(status(job(0), state="loading"), "j", Speed(None), 0.0) == "loading org/m"
    assert describe(status(JobStatus("other", finished=3)), "j", Speed(None), 0.0) == "starting"


def test_a_stream_says_when_it_is_read() -> None:
    is_read = threading.Event()
    with when_reading(is_read.set):
        speed = Speed(None, lambda: "kafka:one:9092/prompts" if is_read.is_set() else "")
        assert describe(None, "j", speed, 0.0) == "starting"
        tell_reading()
        assert describe(None, "j", speed, 0.0) == "reading kafka:one:9092/prompts"
        assert describe(status(state="loading"), "j", speed, 0.0) == "loading org/m"
        assert describe(status(job(1)), "j", speed, 0.0).startswith("1 ")
    is_read.clear()
    tell_reading()
    assert not is_read.is_set(), "nobody listens any more"


def test_a_watch_tells_that_it_looks(tmp_path: Path) -> None:
    is_read = threading.Event()
    with when_reading(is_read.set):
        PollPatterns(interval=1.0, settle=1.0)(([f"{tmp_path}/*"], 0.0))
    assert is_read.is_set()


def test_a_reader_tells_that_it_reads() -> None:
    reader: ReaderDoFn[str, threading.Event] = ReaderDoFn("source", None, late=False)
    reader.connect = threading.Event  # type: ignore[method-assign]
    is_read = threading.Event()
    with when_reading(is_read.set):
        reader.setup()
    assert is_read.is_set()


def test_that_a_stream_is_read_is_told_at_once_and_once_where_there_is_no_terminal() -> None:
    polls = threading.Semaphore(0)

    def read() -> Status:
        polls.release()
        return status()

    out = io.StringIO()
    with shown_progress(read, "j", Speed(None, lambda: "watch:in/*"), Console(file=out), clock=lambda: 0.0):
        for _ in range(3):
            assert polls.acquire(timeout=300)
    assert out.getvalue() == "reading watch:in/*\n"


def test_the_line_has_done_and_total_speeds_and_time_left() -> None:
    speed = Speed(RowCount(500, True))
    describe(status(job(0)), "j", speed, 10.0)
    line = describe(status(job(19, 1, tokens=3000)), "j", speed, 12.0)
    assert line == "20 of 500 rows   3,000 generated   10.0 rows/s   1,500 tokens/s   0:48 left"
    assert speed.fraction() == 0.04


def test_rows_that_failed_are_told_with_their_commonest_reasons() -> None:
    failures = {"InvalidRequest": 12, "PromptTooLong": 3}
    speed = Speed(RowCount(500, True), failures=lambda: failures)
    assert describe(status(job(0)), "j", speed, 0.0) == "0 of 500 rows   15 failed: 12 InvalidRequest, 3 PromptTooLong"
    line = describe(status(job(5, 15)), "j", speed, 2.0)
    assert line == "20 of 500 rows   10.0 rows/s   0:48 left   15 failed: 12 InvalidRequest, 3 PromptTooLong"


def test_of_workers_that_are_other_processes_the_manager_tells_what_failed() -> None:
    elsewhere = JobStatus("j", finished=5, failed=3, failures={"PromptTooLong": 2, "EngineKiller": 1})
    speed = Speed(RowCount(500, True))
    assert (
        describe(status(elsewhere), "j", speed, 0.0)
        == "8 of 500 rows   3 requests failed: 2 PromptTooLong, 1 EngineKiller"
    )
    here = Speed(RowCount(500, True), failures=lambda: {"PromptTooLong": 4})
    assert describe(status(elsewhere), "j", here, 0.0) == "8 of 500 rows   4 failed: 4 PromptTooLong"


def test_an_estimated_total_says_so() -> None:
    speed = Speed(RowCount(5000, False))
    assert describe(status(job(1)), "j", speed, 0.0).startswith("1 of ≈ 5,000 rows")


def test_speeds_are_those_of_the_last_seconds() -> None:
    speed = Speed(RowCount(1000, True))
    for second in range(100):
        line = describe(status(job(min(second, 50) * 2)), "j", speed, float(second))
    assert "0.0 rows/s" in line
    assert "left" not in line


def test_counts_go_on_where_another_manager_begins_at_none() -> None:
    speed = Speed(RowCount(100, True))
    describe(status(job(20, tokens=40)), "j", speed, 0.0)
    line = describe(status(job(5, tokens=10)), "j", speed, 1.0)
    assert line.startswith("25 of 100 rows   50 generated   5.0 rows/s   10 tokens/s")


def test_what_an_earlier_attempt_at_the_job_had_counted_is_not_counted_again() -> None:
    before = JobStatus("j", finished=112, failed=2, generated_tokens=50, failures={"PromptTooLong": 2})
    statuses = [
        status(before),
        status(JobStatus("j", finished=175, failed=3, generated_tokens=90, failures={"PromptTooLong": 3})),
        None,
        status(job(40, tokens=20)),  # another manager
    ]
    read, speed = counted_since(iter(statuses).__next__, before), Speed(RowCount(176, True))
    assert describe(read(), "j", speed, 0.0) == "0 of 176 rows"
    assert describe(read(), "j", speed, 1.0).startswith("64 of 176 rows   40 generated   64.0 rows/s")
    assert read() is None
    assert describe(read(), "j", speed, 2.0).startswith("104 of 176 rows   60 generated")


def test_nothing_is_assumed_without_a_total() -> None:
    speed = Speed(None)
    assert describe(status(job(3), outstanding=1), "j", speed, 0.0) == "3 rows", "one sample has no speed"
    assert speed.fraction() == 0.0


def test_a_stream_that_has_done_all_there_is_says_that_it_waits() -> None:
    speed = Speed(None)
    lines = [describe(status(job(min(second, 3))), "j", speed, float(second)) for second in range(60)]
    assert lines[5].startswith("3 rows   0.6 rows/s")
    assert set(lines[20:]) == {"3 rows, waiting for more"}
    busy = describe(status(job(3), outstanding=1), "j", speed, 60.0)
    assert busy == "3 rows   0.0 rows/s"


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_live_on_a_terminal_and_in_lines_elsewhere(terminal: bool) -> None:
    ticks: Iterator[float] = itertools.count(0.0, 6.0)
    polls = threading.Semaphore(0)

    def read() -> Status:
        polls.release()
        return status(job(1))

    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with shown_progress(read, "j", Speed(RowCount(2, True)), console, clock=lambda: next(ticks)):
        for _ in range(3):
            assert polls.acquire(timeout=300)
    assert "1 of 2 rows" in out.getvalue()
    assert ("\x1b[" in out.getvalue()) == terminal


_FAILS = """
import threading
from rich.console import Console
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import JobStatus
from millrace.pipelines.job.progress import Speed, shown_progress
from millrace.transforms.reading.count import RowCount

polls, shown = iter(range(100)), threading.Event()
failures = {"InvalidRequest": 1200, "PromptTooLong": 310, "ConstraintNotMet": 42, "EngineKiller": 7}

def read():
    poll = next(polls)
    if poll == 3:
        shown.set()
    job = JobStatus("j", finished=500_000 + 40 * poll, failed=1559, generated_tokens=9_600_000 + 9000 * poll)
    return Status(pid=1, uptime=1.0, models=[], jobs=[job], processes=[])

with shown_progress(read, "j", Speed(RowCount(5_000_000, True), failures=lambda: failures), Console(stderr=True)):
    shown.wait()
"""


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_on_a_terminal_of_usual_width_all_counts_and_reasons_of_failures_are_shown(columns: int) -> None:
    with on_terminal([sys.executable, "-c", _FAILS], columns=columns) as process:
        shown = process.ended(300)
    assert process.process.returncode == 0, shown
    words = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split())
    assert "1,559 failed: 1,200 InvalidRequest, 310 PromptTooLong, 42 ConstraintNotMet, 7 EngineKiller" in words
    for part in ("rows", "generated", "rows/s", "tokens/s", "left"):
        assert re.search(rf"[\d,.:]+ {part}\b", words), f"{part} is cut"

"""The latest rows of a process are kept while somebody watches, without what was asked or answered."""

from __future__ import annotations

from millrace.model_manager.wire.timings import Timings
from millrace.transforms.elements.completions import DeadLetter, Usage
from millrace.transforms.elements.recent_rows import tell_answered, tell_failed, watched_rows
from millrace.transforms.elements.task_results import Embedded

TIMINGS = Timings(1.0, 0.0, 3.0)


def answered(timings: Timings | None = TIMINGS) -> None:
    tell_answered(Embedded(id="a", usage=Usage(4, 0, 0), timings=timings))


def failed(reason: str) -> None:
    tell_failed(DeadLetter(id="a", error="RequestError", reason=reason, row={"prompt": "secret"}, answer="secret"))


def test_rows_are_those_of_the_block() -> None:
    answered()
    failed("before")
    with watched_rows("out/c") as rows:
        answered()
        failed("within")
    answered()
    failed("after")
    (row,) = rows.answered()
    assert (row.of, row.id, row.queued, row.prefill, row.prompt_tokens) == ("out/c", "a", 1, 2, 4)
    assert [(row.job, row.reason) for row in rows.failed()] == [("out/c", "within")]


def test_only_the_latest_are_kept() -> None:
    with watched_rows("c") as rows:
        for number in range(100):
            failed(str(number))
    reasons = [row.reason for row in rows.failed()]
    assert reasons == [str(number) for number in range(100)][-len(reasons) :]
    assert 1 < len(reasons) < 100


def test_a_long_reason_is_cut_and_the_row_is_not_kept() -> None:
    with watched_rows("c") as rows:
        failed("x" * 10_000)
    (row,) = rows.failed()
    assert len(row.reason) < 1000
    assert row.reason.endswith("…")
    assert "secret" not in str(row)


def test_a_row_without_times_is_no_life() -> None:
    with watched_rows("c") as rows:
        answered(None)
    assert rows.answered() == []

"""Figures made from a look at the machine, and those kept of earlier looks."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.model_manager.wire.job_progress import RowLife
from millrace.serving.metrics.snapshot import Snapshot
from millrace.serving.window.figures import figures
from millrace.serving.window.history import History
from tests.serving.metrics.scrapes import STATUS
from tests.serving.window.looks import JOB, LETTER, NAME, ROW, at, look


def request(end: float, first: float, state: str = "done", tokens: int = 3) -> RowLife:
    return RowLife(at=end, of="/v1/completions", prefill=first, generated_tokens=tokens, state=state)


def test_a_job_that_runs_is_not_among_the_others() -> None:
    assert [job.job for job in look(JOB).jobs] == [NAME]
    assert look(JOB).other_jobs == []
    assert [job.job for job in look().other_jobs] == [NAME]


def test_rows_and_dead_letters_stand_beside_the_jobs_and_not_in_them() -> None:
    seen = look(JOB)
    assert (seen.rows, seen.dead_letters) == ([ROW], [LETTER])
    assert (seen.jobs[0].rows, seen.jobs[0].dead_letters) == ([], [])


def test_requests_and_rows_are_in_order_and_the_latest_are_kept() -> None:
    requests = [request(float(number), 0.1) for number in range(200)]
    seen = figures(Snapshot(200.0, None, "", [JOB]), requests).rows
    assert seen[-1].at == 199.0
    assert [row.at for row in seen] == sorted(row.at for row in seen)
    assert len(seen) < 100


def test_the_first_token_is_of_rows_that_have_one_and_ended_lately() -> None:
    others = [request(100.0, 9.0, "running"), request(100.0, 9.0, "failed"), request(100.0, 9.0, tokens=0)]
    old = request(1.0, 9.0)
    rows = [old, *others, request(99.0, 0.1), request(99.0, 0.3), request(99.0, 0.2)]
    assert figures(Snapshot(100.0, None), rows).ttft == 0.2
    assert figures(Snapshot(100.0, None), [old, *others]).ttft is None


def test_sums_are_over_all_models() -> None:
    models = [STATUS.models[0], msgspec.structs.replace(STATUS.models[0], key="other")]
    seen = figures(Snapshot(1.0, msgspec.structs.replace(STATUS, models=models)))
    assert (seen.running, seen.waiting) == (5, 8)


def test_between_two_steps_the_batch_of_the_steps_is_what_runs() -> None:
    def seen(**fields: Any) -> int:
        stats = msgspec.structs.replace(STATUS.models[0].stats, running=0, **fields)
        models = [msgspec.structs.replace(STATUS.models[0], stats=stats)]
        return figures(Snapshot(1.0, msgspec.structs.replace(STATUS, models=models))).running

    assert seen(batch=0.2) == 1
    assert seen(batch=0.0) == 0


def test_without_a_manager_jobs_are_seen_all_the_same() -> None:
    seen = look(JOB, has_manager=False, error="it does not answer")
    assert (seen.status, seen.error, seen.running) == (None, "it does not answer", 0)
    assert [job.job for job in seen.jobs] == [NAME]


def test_dead_letters_outlive_their_job_once_each() -> None:
    history = History()
    history.add(look(at(1.0)))
    history.add(look(at(2.0)))
    history.add(look(at(2.0)))
    assert [letter.at for letter in history.add(look()).dead_letters] == [1.0, 2.0]


def test_history_has_a_point_a_look_and_forgets_the_oldest() -> None:
    history = History()
    for second in range(1000):
        history.add(look(at(float(second)), at=float(second)))
    points = history.points
    assert points[-1].at == 999.0
    assert len(points) < 1000
    assert len(history.add(look()).dead_letters) < 100

"""Dead letters of jobs, from one look to the next."""

from __future__ import annotations

import msgspec

from millrace.model_manager.wire.job_progress import JobProgress
from millrace.model_manager.wire.status import JobStatus
from millrace.serving.metrics.dead_letters import DeadLetters
from tests.serving.window.looks import JOB, NAME

KNOWN = JobStatus(NAME, failed=1, failures={"ModelError": 1})
OWN = {"InvalidRequest": 1, "PromptTooLong": 1, "UnreadableRow": 1}


def says(failures: dict[str, int], *, counted_here: bool = True) -> JobProgress:
    return msgspec.structs.replace(JOB, failures=failures, counted_here=counted_here)


def test_a_running_job_knows_its_rows_that_were_never_sent() -> None:
    assert DeadLetters().look([JobStatus(NAME)], [says(OWN)]) == {NAME: OWN}
    assert DeadLetters().look([], [says(OWN)]) == {NAME: OWN}, "the manager has no result of the job yet"


def test_the_manager_counts_a_job_whose_workers_are_other_processes_or_that_runs_elsewhere() -> None:
    assert DeadLetters().look([KNOWN], [says({}, counted_here=False)]) == {NAME: {"ModelError": 1}}
    assert DeadLetters().look([KNOWN], []) == {NAME: {"ModelError": 1}}


def test_counts_stay_when_the_job_has_ended_until_the_manager_forgets_it() -> None:
    letters = DeadLetters()
    letters.look([KNOWN], [says(OWN)])
    late = msgspec.structs.replace(KNOWN, failures={"ModelError": 2, "PromptTooLong": 0})
    assert letters.look([late], []) == {NAME: OWN}, "the manager counts requests, and a row may be several"
    assert letters.look([], []) == {}
    assert letters.look([KNOWN], []) == {NAME: {"ModelError": 1}}


def test_what_the_manager_said_first_stays_when_the_job_counts_its_own_rows() -> None:
    """As where `--resume` goes on under the name of a job that no scrape saw."""
    letters = DeadLetters()
    letters.look([KNOWN], [])
    assert letters.look([KNOWN], [says({})]) == {NAME: {"ModelError": 1}}
    assert letters.look([KNOWN], []) == {NAME: {"ModelError": 1}}


def test_counts_of_a_running_job_do_not_fall() -> None:
    letters = DeadLetters()
    letters.look([KNOWN], [says(OWN)])
    assert letters.look([KNOWN], [says({"InvalidRequest": 2})]) == {NAME: OWN | {"InvalidRequest": 2}}

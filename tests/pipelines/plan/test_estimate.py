from fractions import Fraction

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.plan.estimate import Terms, Work, WorkerSpeed, for_deadline, ladder, with_workers, work_hours

HOUR = Fraction(1)


def terms(startup: Fraction = Fraction(0), hourly: Fraction | None = None) -> Terms:
    return Terms(startup=startup, margin=Fraction(0), hourly=hourly)


def test_generated_tokens_take_their_quotient_with_the_speed() -> None:
    work = Work(prompt_tokens=Fraction(10**9), generated_tokens=Fraction(3_600_000))
    assert work_hours(work, WorkerSpeed(generated=Fraction(100)), terms()) == 10


def test_prompt_tokens_come_on_top_where_their_speed_is_given() -> None:
    work = Work(prompt_tokens=Fraction(7_200_000), generated_tokens=Fraction(3_600_000))
    assert work_hours(work, WorkerSpeed(Fraction(100), prompt=Fraction(1000)), terms()) == 12


def test_what_generates_nothing_takes_what_reading_takes() -> None:
    work = Work(prompt_tokens=Fraction(3_600_000), generated_tokens=Fraction(0))
    assert work_hours(work, WorkerSpeed(None, prompt=Fraction(1000)), terms()) == 1
    with pytest.raises(ConfigError, match="--prompt_tokens_per_second is missing"):
        work_hours(work, WorkerSpeed(Fraction(100)), terms())


def test_a_speed_that_is_needed_is_asked_for() -> None:
    work = Work(prompt_tokens=Fraction(1), generated_tokens=Fraction(1))
    with pytest.raises(ConfigError, match="--tokens_per_second is missing"):
        work_hours(work, WorkerSpeed(None, prompt=Fraction(1)), terms())


def test_after_a_preemption_a_worker_starts_again() -> None:
    work = Work(prompt_tokens=Fraction(0), generated_tokens=Fraction(3_600_000))
    terms = Terms(startup=Fraction(1, 6), margin=Fraction("0.1"), preemptions=Fraction(3, 2))
    assert work_hours(work, WorkerSpeed(Fraction(100)), terms) == 10 * Fraction("1.1") * Fraction("1.25")


def test_workers_share_the_work_and_each_pays_its_start() -> None:
    estimate = with_workers(Fraction(10), 4, terms(startup=Fraction(1, 2), hourly=Fraction(2)))
    assert [estimate.hours, estimate.worker_hours, estimate.price] == [3, 12, 24]
    assert with_workers(Fraction(10), 4, terms()).price is None


def test_a_deadline_takes_the_fewest_workers_that_meet_it() -> None:
    estimate = for_deadline(Fraction(10), Fraction(6), terms(startup=HOUR))
    assert [estimate.workers, estimate.hours] == [2, 6]
    assert for_deadline(Fraction(10), Fraction(599, 100), terms(startup=HOUR)).workers == 3


def test_a_quotient_that_is_whole_takes_no_worker_more() -> None:
    hours = work_hours(
        Work(Fraction(0), Fraction(1_080_000)), WorkerSpeed(Fraction(100)), Terms(Fraction(0), Fraction("0.1"))
    )
    assert for_deadline(hours, Fraction("3.3"), terms()).workers == 1
    assert 3 * 1.1 / 3.3 > 1, "which is why it is not done in floating point"


def test_a_deadline_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is not longer than a worker's start \(1h\)"):
        for_deadline(Fraction(10), HOUR, terms(startup=HOUR))
    with pytest.raises(ConfigError, match="take 10,000 workers"):
        for_deadline(Fraction(10_000), Fraction(2), terms(startup=HOUR))


def test_the_ladder_ends_where_workers_would_start_rather_than_work() -> None:
    counts = [each.workers for each in ladder(Fraction(8), terms(startup=HOUR))]
    assert counts == [1, 2, 4, 8, 16]
    assert [each.workers for each in ladder(Fraction(1, 100), terms(startup=HOUR))] == [1]
    assert len(ladder(Fraction(8), terms())) == 10

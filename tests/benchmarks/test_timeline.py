"""A timeline notes every step and every request's end, and leaves the runner as it was."""

from benchmarks.timeline import arrivals, record
from benchmarks.workload import Item
from tests.model_manager.engine.history_runner import EngineUnderTest

ITEMS = [Item([1, 2, 3], 4), Item([5, 6, 7, 8], 2)]


def test_every_step_and_every_request_is_noted() -> None:
    tested = EngineUnderTest()
    line = record(tested.engine, tested.runner, ITEMS, "two requests", [0.0, 0.0])

    assert line.tokens == [7, 2, 1, 1]
    assert line.sequences == [2, 2, 1, 1]
    assert line.sampled == line.sequences
    assert len(line.step_ms) == len(line.ended_at) == 4
    assert line.latency == [line.ended_at[1], line.ended_at[3]]


def test_the_summary_counts_tokens_and_steps() -> None:
    tested = EngineUnderTest()
    summary = record(tested.engine, tested.runner, ITEMS, "two requests", [0.0, 0.0]).summary()

    assert summary["steps"] == 4
    assert summary["tokens_per_step"] == 2.8
    assert summary["median_latency_s"] <= summary["p95_latency_s"] <= summary["seconds"]


class Clock:
    """Passes when it is read, and when it is slept by."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_requests_are_added_as_they_arrive_and_latency_is_from_then() -> None:
    tested, clock = EngineUnderTest(), Clock()
    line = record(tested.engine, tested.runner, ITEMS, "two requests", [0.0, 100.0], clock, clock.sleep)

    assert line.sequences == [1] * 6  # never both
    assert max(line.latency) < 10.0 < 100.0 < line.finished_at[-1]
    assert line.max_num_seqs == tested.engine.info.max_num_seqs


def test_arrivals_are_so_many_a_second_on_average() -> None:
    assert arrivals(3, 0.0) == [0.0, 0.0, 0.0]
    assert 0.8 < arrivals(1000, 1000.0)[-1] < 1.2


def test_the_runner_is_as_before() -> None:
    tested = EngineUnderTest()
    record(tested.engine, tested.runner, ITEMS, "two requests", [0.0, 0.0])
    seen = len(tested.runner.steps)
    record(tested.engine, tested.runner, ITEMS, "again", [0.0, 0.0])

    assert len(tested.runner.steps) == 2 * seen

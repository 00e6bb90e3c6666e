"""A timeline notes every step and every request's end, and leaves the runner as it was."""

from benchmarks.timeline import record
from benchmarks.workload import Item
from tests.model_manager.engine.history_runner import EngineUnderTest

ITEMS = [Item([1, 2, 3], 4), Item([5, 6, 7, 8], 2)]


def test_every_step_and_every_request_is_noted() -> None:
    tested = EngineUnderTest()
    line = record(tested.engine, tested.runner, ITEMS, "two requests")

    assert line.tokens == [7, 2, 1, 1]
    assert line.sequences == [2, 2, 1, 1]
    assert line.sampled == line.sequences
    assert len(line.step_ms) == len(line.ended_at) == 4
    assert line.latency == [line.ended_at[1], line.ended_at[3]]


def test_the_summary_counts_tokens_and_steps() -> None:
    tested = EngineUnderTest()
    summary = record(tested.engine, tested.runner, ITEMS, "two requests").summary()

    assert summary["steps"] == 4
    assert summary["tokens_per_step"] == 2.8
    assert summary["median_latency_s"] <= summary["p95_latency_s"] <= summary["seconds"]


def test_the_runner_is_as_before() -> None:
    tested = EngineUnderTest()
    record(tested.engine, tested.runner, ITEMS, "two requests")
    seen = len(tested.runner.steps)
    record(tested.engine, tested.runner, ITEMS, "again")

    assert len(tested.runner.steps) == 2 * seen

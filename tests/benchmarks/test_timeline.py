"""A timeline notes every step and every request's end, and leaves the runner as it was."""

from benchmarks.timeline import record
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

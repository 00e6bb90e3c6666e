from __future__ import annotations

from millrace.model_manager.engine.counters import EngineCounters, Throughput
from tests.model_manager.engine.history_runner import Clock


def test_a_rate_is_over_the_time_since_the_start_at_first_and_five_seconds_later_on() -> None:
    throughput = Throughput(start=100.0)
    throughput.add(101.0, 10)
    assert throughput.rate(101.0) == 10.0
    assert throughput.rate(102.0) == 5.0
    throughput.add(104.0, 40)
    assert throughput.rate(105.5) == 10.0
    assert throughput.rate(107.0) == 8.0
    assert throughput.rate(200.0) == 0.0


def test_a_rate_of_no_time_is_nothing() -> None:
    assert Throughput(start=100.0).rate(100.0) == 0.0


def test_many_steps_are_kept_in_few_slices() -> None:
    throughput = Throughput(start=0.0)
    for millisecond in range(20_000):
        throughput.add(millisecond / 1000, 1)
    assert len(throughput._slices) < 60
    assert 950 < throughput.rate(20.0) < 1050


def test_memory_is_read_once_a_second() -> None:
    clock = Clock()
    counters = EngineCounters(clock)
    assert counters.snapshot()["rss_mb"] > 1
    counters._memory_mb = -1.0
    clock.now += 0.9
    assert counters.snapshot()["rss_mb"] == -1.0
    clock.now += 0.2
    assert counters.snapshot()["rss_mb"] > 1


def test_the_batch_is_that_of_the_latest_steps_also_when_none_runs() -> None:
    clock = Clock()
    counters = EngineCounters(clock)
    assert (counters.snapshot()["batch"], counters.snapshot()["blocks_held"]) == (0.0, 0.0)
    counters.stepped(64, blocks=8)
    clock.now += 4.0
    counters.stepped(2, blocks=4)
    assert (counters.snapshot()["batch"], counters.snapshot()["blocks_held"]) == (33.0, 6.0)
    clock.now += 2.0
    assert (counters.snapshot()["batch"], counters.snapshot()["blocks_held"]) == (2.0, 4.0)
    clock.now += 60.0
    assert (counters.snapshot()["batch"], counters.snapshot()["steps"]) == (0.0, 2)

from __future__ import annotations

import pytest

from millrace.model_manager.engine.scheduling.batch_table import BatchTable
from millrace.model_manager.engine.scheduling.block_manager import BlockManager
from millrace.model_manager.engine.scheduling.scheduler import MOST_STEPS_PUT_OFF, Scheduler
from millrace.model_manager.engine.scheduling.sequence import Sequence, SequenceStatus
from millrace.model_manager.engine.scheduling.stopping import StopConditions
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.sampling import SamplingParams

SIZE = 4


class Driver:
    """A scheduler, with steps that compute what is scheduled and sample token 1."""

    def __init__(
        self,
        num_blocks: int = 32,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 8,
        block_size: int = SIZE,
        checks: bool = True,
        admits_together: int = 1,
    ) -> None:
        """`checks`: whether every step ends with a look at all invariants, which takes longer the more there are."""
        self._checks = checks
        self.blocks = BlockManager(num_blocks, block_size)
        self.table = BatchTable(max_num_seqs, num_blocks * block_size, block_size)
        self.scheduler = Scheduler(
            self.blocks,
            self.table,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            admits_together=admits_together,
        )
        self.arrivals = 0

    def add(
        self, name: str, length: int, max_tokens: int = 99, prefix: tuple[int, ...] = (), **options: object
    ) -> Sequence:
        """A sequence of `length` tokens of its own after the prefix."""
        self.arrivals += 1
        params = SamplingParams.parse({"max_tokens": max_tokens, **options})
        prompt = [*prefix, *[-self.arrivals] * length]
        conditions = StopConditions(params, max_tokens, (), None)
        sequence = Sequence(Request(name, prompt, params), conditions, now=0.0, order=self.arrivals)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """What each sequence was given."""
        batch = self.scheduler.schedule()
        given = {scheduled.sequence.request_id: scheduled.num_tokens for scheduled in batch}
        sampling = [scheduled.sequence for scheduled in batch if scheduled.samples]
        self.scheduler.computed(batch)
        for sequence in sampling:
            sequence.append(1)
            self.scheduler.sampled(sequence)
        if self._checks:
            self.scheduler.check_integrity()
        return given


def test_what_a_chunk_leaves_of_the_budget_goes_to_the_next_in_line() -> None:
    driver = Driver()
    for name in "abc":
        driver.add(name, 5)
    assert driver.step() == {"a": 5, "b": 3}
    assert driver.step() == {"a": 1, "b": 2, "c": 5}


def test_prompts_are_admitted_together_once_as_many_rows_are_free() -> None:
    driver = Driver(admits_together=2, max_num_batched_tokens=20)
    for name, count in zip("abcd", (2, 4, 9, 9), strict=True):
        driver.add(name, 1, max_tokens=count)
    for name in "efg":
        driver.add(name, 3)
    begun = [sorted(driver.step()) for _ in range(5)]
    assert begun == [list("abcd"), list("abcd"), list("bcd"), list("bcd"), list("cdef")]


def test_prompts_are_admitted_together_once_there_are_blocks_for_all_of_them() -> None:
    driver = Driver(num_blocks=11, admits_together=2, max_num_batched_tokens=20)
    driver.add("a", 9, max_tokens=3)
    driver.add("b", 8, max_tokens=9)
    driver.step()
    driver.add("c", 8)
    driver.add("d", 11)
    assert [sorted(driver.step()) for _ in range(3)] == [["a", "b"], ["a", "b"], ["b", "c", "d"]]


def test_the_last_prompt_in_line_waits_for_no_company() -> None:
    driver = Driver(admits_together=2)
    driver.add("a", 1)
    driver.step()
    driver.add("b", 2)
    assert driver.step() == {"a": 1, "b": 2}


def test_a_prompt_that_goes_on_has_others_begin_beside_it() -> None:
    driver = Driver(max_num_seqs=2, admits_together=2)
    driver.add("a", 12, max_tokens=1)
    driver.add("b", 1)
    driver.add("c", 1)
    assert driver.step() == {"a": 8}
    assert driver.step() == {"a": 4, "b": 1}


def test_prompts_wait_for_company_for_so_many_steps_and_no_longer() -> None:
    driver = Driver(num_blocks=100, admits_together=2)
    for name in "abc":
        driver.add(name, 1)
    driver.step()
    for name in "de":
        driver.add(name, 2)
    steps = [sorted(driver.step()) for _ in range(MOST_STEPS_PUT_OFF + 1)]
    assert steps == [*[["a", "b", "c"]] * MOST_STEPS_PUT_OFF, ["a", "b", "c", "d"]]


def test_a_prompt_that_finds_no_blocks_waits_and_nobody_overtakes_it() -> None:
    driver = Driver(num_blocks=4)
    driver.add("a", 6, max_tokens=3)
    driver.add("b", 12)
    driver.add("c", 1)
    assert [driver.step() for _ in range(4)] == [{"a": 6}, {"a": 1}, {"a": 1}, {"b": 8}]


def test_the_last_arrival_is_preempted_and_runs_again_before_any_other() -> None:
    driver = Driver(num_blocks=5)
    a = driver.add("a", 4, max_tokens=6)
    b = driver.add("b", 4)
    assert driver.step() == {"a": 4, "b": 4}
    driver.add("c", 1)
    for _ in range(4):
        driver.step()
    assert driver.step() == {"a": 1}
    assert driver.scheduler.num_preemptions == 1
    assert (a.status, b.status) == (SequenceStatus.FINISHED, SequenceStatus.WAITING)
    assert list(driver.scheduler.waiting) == ["b", "c"]
    assert b.num_output_tokens == 5
    assert driver.step() == {"b": 1, "c": 1}  # its first blocks were still in the cache
    assert b.num_recomputed_tokens == 0


def test_a_waiting_or_running_sequence_can_be_ended_at_any_time() -> None:
    driver = Driver(max_num_seqs=1)
    running, waiting = driver.add("a", 20), driver.add("b", 2)
    driver.step()
    for sequence in (running, waiting):
        assert driver.scheduler.find(sequence.request_id) is sequence
        driver.scheduler.finish(sequence)
        driver.scheduler.check_integrity()
        assert driver.scheduler.find(sequence.request_id) is None
    assert driver.blocks.num_free == 32


def test_the_lower_number_runs_first_and_arrival_decides_among_equals() -> None:
    driver = Driver(max_num_seqs=1)
    for name, priority in (("late", 5), ("usual", 0), ("urgent", -1), ("usual too", 0)):
        driver.add(name, 2, max_tokens=1, priority=priority)
    assert [next(iter(driver.step())) for _ in range(4)] == ["urgent", "usual", "usual too", "late"]


def test_a_cached_beginning_does_not_pass_a_more_urgent_request() -> None:
    driver = Driver(max_num_seqs=1, max_num_batched_tokens=32)
    driver.add("a", 2, max_tokens=1, prefix=SHARED)
    driver.step()
    driver.add("cached", 2, max_tokens=1, prefix=SHARED, priority=1)
    driver.add("urgent", 2, max_tokens=1)
    assert [next(iter(driver.step())) for _ in range(2)] == ["urgent", "cached"]


def test_the_least_urgent_is_preempted_though_it_came_first() -> None:
    driver = Driver(num_blocks=5)
    first = driver.add("least", 4, max_tokens=8, priority=1)
    driver.step()
    second = driver.add("usual", 4, max_tokens=8)
    while not driver.scheduler.num_preemptions:
        driver.step()
    assert (first.status, second.status) == (SequenceStatus.WAITING, SequenceStatus.RUNNING)


SHARED = (7, 7, 7, 7, 8, 8, 8, 8)


@pytest.mark.parametrize("how", ["finish", "distrust"])
def test_who_waits_for_a_beginning_computes_it_when_the_other_is_gone(how: str) -> None:
    driver = Driver(max_num_batched_tokens=6)
    first = driver.add("a", 2, prefix=SHARED)
    driver.add("b", 2, prefix=SHARED)
    driver.add("c", 2, prefix=SHARED)
    driver.step()
    getattr(driver.scheduler, how)(first)
    assert [driver.step() for _ in range(3)] == [{"b": 6}, {"b": 4}, {"b": 1, "c": 2}]


def test_who_waits_for_a_beginning_goes_on_when_the_other_is_preempted() -> None:
    driver = Driver(num_blocks=6, max_num_batched_tokens=6)
    driver.add("old", 4, max_tokens=9)
    driver.step()
    driver.add("a", 2, max_tokens=9, prefix=SHARED)
    assert driver.step() == {"old": 1, "a": 5}
    driver.add("b", 2, max_tokens=9, prefix=SHARED)
    for _ in range(40):
        driver.step()
    assert driver.scheduler.num_preemptions > 0
    assert not driver.scheduler.waiting
    assert not driver.scheduler.running


def test_whose_beginning_is_cached_goes_first_the_longest_of_all() -> None:
    driver = Driver(max_num_seqs=1, max_num_batched_tokens=32)
    driver.add("a", 2, max_tokens=1, prefix=SHARED)
    driver.step()
    for name, prefix in (("none", ()), ("half", SHARED[:4]), ("whole", SHARED), ("whole too", SHARED)):
        driver.add(name, 2, max_tokens=1, prefix=prefix)
    order = [next(iter(driver.step())) for _ in range(4)]
    assert order == ["whole", "whole too", "half", "none"]


def test_an_urgent_request_runs_in_the_next_step_though_all_rows_are_taken() -> None:
    driver = Driver(max_num_seqs=2)
    rows = [driver.add(name, 2) for name in "ab"]
    driver.step()
    driver.add("urgent", 3, max_tokens=2, priority=-1)
    assert driver.step() == {"a": 1, "urgent": 3}
    assert driver.step() == {"a": 1, "urgent": 1}
    assert [row.status for row in rows] == [SequenceStatus.RUNNING, SequenceStatus.WAITING]
    assert driver.step() == {"a": 1, "b": 3}  # its block was not full, so it is computed again
    assert [row.num_recomputed_tokens for row in rows] == [0, 2]
    assert driver.scheduler.num_preemptions == 1


def test_an_urgent_prompt_comes_before_prompts_that_are_partly_computed() -> None:
    driver = Driver(max_num_seqs=2, max_num_batched_tokens=8)
    driver.add("a", 40)
    driver.add("b", 40)
    driver.step()
    driver.add("urgent", 5, priority=-1)
    assert driver.step() == {"urgent": 5, "a": 3}


def test_each_urgent_request_takes_the_place_of_one_row_at_most() -> None:
    driver = Driver(num_blocks=32, max_num_seqs=4, max_num_batched_tokens=64)
    for name in "abcd":
        driver.add(name, 20)
    driver.step()
    driver.add("large", 100, max_tokens=2, priority=-1)
    for _ in range(5):
        assert "large" not in driver.step()
        assert driver.scheduler.num_preemptions == 1
    for name in "abc":
        driver.scheduler.finish(driver.scheduler.running[name])
    assert "large" in driver.step()


def test_urgent_requests_take_the_rows_of_the_highest_number_and_the_latest_first() -> None:
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=32)
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", 0)):
        driver.add(name, 2, priority=priority)
    driver.step()
    for index in range(3):
        driver.add(f"urgent {index}", 2, priority=-1)
    driver.step()
    assert list(driver.scheduler.running) == ["urgent 0", "urgent 1", "urgent 2", "b"]
    assert driver.scheduler.num_preemptions == 3


def test_no_row_makes_way_for_a_request_of_its_own_number_or_where_a_row_is_free() -> None:
    driver = Driver(max_num_seqs=2)
    driver.add("a", 2)
    driver.step()
    driver.add("urgent", 2, priority=-1)
    driver.add("urgent too", 2, priority=-1)
    driver.step()
    assert driver.scheduler.num_preemptions == 1
    driver.add("as urgent", 2, priority=-1)
    driver.step()
    assert list(driver.scheduler.running) == ["urgent", "urgent too"]
    assert driver.scheduler.num_preemptions == 1


def test_under_a_stream_of_urgent_requests_rows_lose_no_token_and_go_on_between_them() -> None:
    driver = Driver(num_blocks=64, max_num_seqs=3, max_num_batched_tokens=32)
    rows = [driver.add(f"row {index}", 3, max_tokens=20) for index in range(6)]
    for index in range(40):
        if index % 4 == 0:
            driver.add(f"urgent {index}", 3, max_tokens=2, priority=-1)
        driver.step()
    while driver.scheduler.running or driver.scheduler.waiting:
        driver.step()
    assert all(row.num_output_tokens == 20 for row in rows)
    assert driver.scheduler.num_preemptions <= 10


def test_a_cache_is_cut_once_who_holds_its_end_is_preempted_and_a_held_sequence_not_before_it_goes_on() -> None:
    driver = Driver(num_blocks=8)
    low, high, held = (driver.add(name, 6) for name in ("low", "high", "held"))
    for _ in range(3):
        driver.step()
    assert max(low.block_table) < 3 <= min(max(high.block_table), max(held.block_table))
    held.is_held = True
    assert not driver.scheduler.resize(3)
    assert list(driver.scheduler.running) == ["low", "held"]
    driver.scheduler.check_integrity()
    held.is_held = False
    assert driver.scheduler.resize(3)
    assert list(driver.scheduler.running) == ["low"]
    driver.scheduler.check_integrity()
    driver.scheduler.finish(low)
    assert set(driver.step()) == {"high"}, "it goes on, in the first blocks"
    assert max(high.block_table) < 3

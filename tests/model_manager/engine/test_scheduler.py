from __future__ import annotations

import pytest

from model_manager.engine.batch_table import BatchTable
from model_manager.engine.block_manager import BlockManager
from model_manager.engine.scheduler import Scheduler
from model_manager.engine.sequence import Sequence, SequenceStatus
from model_manager.engine.stopping import StopConditions
from model_manager.wire.messages import Request
from model_manager.wire.sampling import SamplingParams

SIZE = 4


class Driver:
    """A scheduler, with steps that compute what is scheduled and sample token 1."""

    def __init__(self, num_blocks: int = 32, max_num_seqs: int = 4, max_num_batched_tokens: int = 8) -> None:
        self.blocks = BlockManager(num_blocks, SIZE)
        self.table = BatchTable(max_num_seqs, num_blocks * SIZE, SIZE)
        self.scheduler = Scheduler(
            self.blocks, self.table, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        self.arrivals = 0

    def add(self, name: str, length: int, max_tokens: int = 99) -> Sequence:
        self.arrivals += 1
        params = SamplingParams(max_tokens=max_tokens)
        prompt = [self.arrivals] * length
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
        self.scheduler.check_integrity()
        return given


def test_a_long_prompt_is_computed_in_chunks_while_others_decode() -> None:
    driver = Driver()
    driver.add("a", 2)
    assert driver.step() == {"a": 2}
    driver.add("b", 16)
    assert [driver.step() for _ in range(4)] == [{"a": 1, "b": 7}, {"a": 1, "b": 7}, {"a": 1, "b": 2}, {"a": 1, "b": 1}]


def test_what_a_chunk_leaves_of_the_budget_goes_to_the_next_in_line() -> None:
    driver = Driver()
    for name in "abc":
        driver.add(name, 5)
    assert driver.step() == {"a": 5, "b": 3}
    assert driver.step() == {"a": 1, "b": 2, "c": 5}


def test_no_more_than_max_num_seqs_run_and_arrival_decides() -> None:
    driver = Driver(max_num_seqs=2)
    for name in "abc":
        driver.add(name, 1, max_tokens=2)
    assert [sorted(driver.step()) for _ in range(3)] == [["a", "b"], ["a", "b"], ["c"]]


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


def test_a_finished_sequence_leaves_everything_free() -> None:
    driver = Driver()
    sequence = driver.add("a", 5, max_tokens=2)
    driver.step()
    driver.step()
    assert sequence.status is SequenceStatus.FINISHED
    assert driver.blocks.num_free == 32
    assert driver.scheduler.schedule() == []


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


def test_an_id_is_queued_once() -> None:
    driver = Driver()
    driver.add("a", 2)
    with pytest.raises(AssertionError):
        driver.add("a", 2)

"""The cost of a step does not depend on how many wait. Calls are counted, not time: the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from millrace.model_manager.engine.scheduling.block_manager import BlockManager
from millrace.model_manager.engine.scheduling.prefix_cache import chained_digest
from millrace.model_manager.engine.scheduling.scheduler import LOOK_AHEAD
from tests.model_manager.engine.scheduling.test_scheduler import SHARED, SIZE, Driver


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, that some work makes."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def calls_of_steps(waiting: int, prefix: tuple[int, ...], steps: int = 40) -> int:
    """Calls in this many steps with a queue that is kept at one length; prompts and lengths repeat."""
    driver = Driver(num_blocks=400, max_num_seqs=16, max_num_batched_tokens=48, checks=False)

    def add() -> None:
        number = driver.arrivals
        driver.add(str(number), 3 + number % 11, max_tokens=2 + number % 7, prefix=prefix)

    def step(_number: int) -> None:
        driver.step()
        while len(driver.scheduler.waiting) < waiting:
            add()

    for _ in range(waiting):
        add()
    for number in range(10):
        step(number)
    return calls_of(lambda: list(map(step, range(steps))))


@pytest.mark.parametrize("prefix", [(), SHARED])
def test_a_step_costs_the_same_with_ten_thousand_waiting_as_with_a_hundred(prefix: tuple[int, ...]) -> None:
    """Catches: sorting or scanning the whole queue, a front that is taken from a list, digests of all that wait."""
    assert calls_of_steps(10_000, prefix) <= 1.05 * calls_of_steps(100, prefix)


def test_adding_computes_no_digest_and_a_step_those_of_the_look_ahead_alone() -> None:
    computed = 0

    def counted(parent: bytes, tokens: bytes) -> bytes:
        nonlocal computed
        computed += 1
        return chained_digest(parent, tokens)

    driver = Driver(num_blocks=400, max_num_seqs=16, max_num_batched_tokens=48, checks=False)
    driver.scheduler._blocks = driver.blocks = BlockManager(400, SIZE, digest=counted)
    for number in range(1000):
        driver.add(str(number), 9, prefix=SHARED)
    assert computed == 0
    driver.step()
    blocks_a_prompt = (len(SHARED) + 9) // SIZE
    assert computed <= LOOK_AHEAD * blocks_a_prompt

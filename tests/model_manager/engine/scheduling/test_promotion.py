"""Less urgent sequences go on, at a small share, however many urgent ones come, and cost these no more than that."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.model_manager.engine.scheduling.promotion import LONGEST_TURN, SHARE, TURN
from millrace.model_manager.engine.scheduling.scheduler import MOST_OVERTAKES
from millrace.model_manager.engine.scheduling.sequence import Sequence, SequenceStatus
from millrace.model_manager.wire.request import Adapter
from tests.model_manager.engine.scheduling.test_scheduler import SIZE, Driver

DEEP = 100
"""Urgent ones that wait all the time: more than the scheduler looks at."""
EACH = 50
"""Steps from one check of the scheduler's account to the next."""


class Saturated(Driver):
    """As many urgent sequences wait after each step as before, for as long as it is wanted."""

    def __init__(self, max_num_seqs: int, waiting: int = DEEP, length: int = 3, tokens: int = 4, **sizes: int) -> None:
        sizes = {"num_blocks": 2000, "max_num_batched_tokens": 16 * max_num_seqs} | sizes
        super().__init__(max_num_seqs=max_num_seqs, checks=False, **sizes)
        self.urgent: list[Sequence] = []
        self.given: Counter[bool] = Counter()
        """Tokens that were computed, of urgent ones (True) and of others."""
        self._depth, self._length, self._tokens = waiting, length, tokens
        self.priority = -1000
        self._taken = 0
        self.ask()

    def ask(self) -> None:
        waiting = sum(waits(each) for each in self.urgent[-2 * self._depth :])
        for _ in range(self._depth - waiting):
            name = f"urgent {len(self.urgent)}"
            tokens = 1 + self._tokens // 2 + len(self.urgent) * 37 % self._tokens
            self.urgent.append(self.add(name, self._length, max_tokens=tokens, priority=self.priority))

    def step(self) -> dict[str, int]:
        given = super().step()
        for name, count in given.items():
            self.given[name.startswith("urgent")] += count
        self.ask()
        self._taken += 1
        if self._taken % EACH == 0:
            self.scheduler.check_integrity()
        return given

    def steps(self, count: int) -> Counter[bool]:
        """The tokens of so many steps."""
        self.given.clear()
        for _ in range(count):
            self.step()
        return self.given


def has_ended(sequence: Sequence) -> bool:
    return sequence.status is SequenceStatus.FINISHED


def waits(sequence: Sequence) -> bool:
    return sequence.status is SequenceStatus.WAITING


def runs(sequence: Sequence) -> bool:
    return sequence.status is SequenceStatus.RUNNING


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("tokens", [1, 4, 100], ids=["one", "short", "long"])
@pytest.mark.parametrize("length", [3, 60])
def test_rows_have_their_share_of_the_tokens_and_no_more(max_num_seqs: int, tokens: int, length: int) -> None:
    driver = Saturated(max_num_seqs, tokens=tokens, num_blocks=40 * max(8, max_num_seqs))
    rows = [driver.add(f"row {index}", length, max_tokens=1000) for index in range(8 + max_num_seqs // 4)]
    driver.steps(40)
    given = driver.steps(20 * SHARE * TURN // max_num_seqs + 600)
    assert 0.8 / SHARE <= given[False] / given[True] <= 1.4 / SHARE
    assert sum(row.num_output_tokens for row in rows) >= 0.15 * given[False]  # the rest is computed again


@pytest.mark.parametrize("max_num_seqs", [1, 3, 64])
def test_beside_urgent_prompts_a_quarter_of_the_sequences_may_be_rows(max_num_seqs: int) -> None:
    """Which generate a token in each step, where the prompts have many: so less than their share."""
    driver = Saturated(max_num_seqs, length=60, tokens=1, num_blocks=40 * max(8, max_num_seqs))
    for index in range(8 + max_num_seqs // 4):
        driver.add(f"row {index}", 3, max_tokens=1000)
    driver.steps(40)
    given = driver.steps(2000)
    assert 0.2 / SHARE <= given[False] / given[True] <= 1.25 / SHARE


def test_long_prompts_of_rows_take_their_share_and_no_more() -> None:
    driver = Saturated(8, tokens=20, num_blocks=500)
    for index in range(200):
        driver.add(f"row {index}", 300, max_tokens=4)
    driver.steps(40)
    given = driver.steps(6000)
    assert 0.8 / SHARE <= given[False] / given[True] <= 1.25 / SHARE


def test_a_promoted_row_keeps_its_place_until_it_has_had_its_turn() -> None:
    driver = Saturated(1, tokens=3)
    row = driver.add("row", 5, max_tokens=3 * TURN)
    steps = [[*driver.step()] for _ in range(5 * SHARE * TURN)]
    turns = "".join("r" if names == ["row"] else "u" for names in steps).split("u")
    assert {len(turn) for turn in turns if turn} <= set(range(TURN, TURN + 5))  # with what is computed again
    assert has_ended(row)


def test_rows_end_in_order_of_arrival_whatever_their_priorities() -> None:
    driver = Saturated(2, waiting=5)
    rows = [driver.add(f"row {index}", 3, max_tokens=20, priority=index % 2) for index in range(6)]
    ended: list[str] = []
    for _ in range(40 * SHARE * TURN):
        driver.step()
        ended += [row.request_id for row in rows if row.ending and row.request_id not in ended]
    assert ended == [row.request_id for row in rows]


def test_of_three_priorities_the_last_goes_on_though_the_middle_one_always_runs() -> None:
    driver = Saturated(4, waiting=30)
    last = driver.add("last", 3, max_tokens=20, priority=5)
    for step in range(40 * SHARE * TURN):
        if step % 9 == 0:
            driver.add(f"now and then {step}", 3, max_tokens=2, priority=-2000)
        driver.step()
    assert has_ended(last)


@pytest.mark.parametrize("max_num_seqs", [1, 4, 16])
def test_rows_go_on_though_more_urgent_ones_than_the_urgent_ones_come_for_good(max_num_seqs: int) -> None:
    """A row that is promoted then makes way for none of them, and keeps no other row from its turn."""
    driver = Saturated(max_num_seqs, waiting=80, tokens=40)
    rows = [driver.add(f"row {index}", 3, max_tokens=30) for index in range(400)]
    for priority in (-1000, -2000, -3000):
        driver.priority = priority
        ended = sum(map(has_ended, rows))
        driver.steps(40 * SHARE * TURN // max_num_seqs + 400)
        driver.scheduler.check_integrity()
        assert sum(map(has_ended, rows)) > ended


@pytest.mark.parametrize("max_num_seqs", [1, 4, 16])
def test_rows_that_come_one_after_another_take_no_more_than_their_share(max_num_seqs: int) -> None:
    """What a long prompt took is owed though no row waits for a while."""
    driver = Saturated(max_num_seqs, tokens=20, num_blocks=1000)
    row, pause = driver.add("row", 500, max_tokens=1), 0
    driver.given.clear()
    while driver.given[True] < 40_000:
        driver.step()
        pause = pause + 1 if has_ended(row) else 0
        if pause == 20:
            row = driver.add(f"row {driver.arrivals}", 500, max_tokens=1)
    assert 0.5 / SHARE <= driver.given[False] / driver.given[True] <= 1.5 / SHARE


def test_rows_whose_prompts_get_tokens_are_not_promoted_before_those_of_a_job_that_waits() -> None:
    driver = Driver(num_blocks=600, max_num_seqs=8, max_num_batched_tokens=128, checks=False)
    last = driver.add("last", 3, max_tokens=60, priority=5)
    for step in range(2000):
        if sum(map(waits, driver.scheduler.waiting.values())) < 20:
            driver.add(f"middle {step}", 300, max_tokens=4)
        if step % 5 == 0:
            driver.add(f"urgent {step}", 3, max_tokens=2, priority=-1)
        driver.step()
    assert has_ended(last)


def test_a_promoted_row_without_its_adapter_holds_up_nobody_who_takes_none() -> None:
    driver = Saturated(1, waiting=30, tokens=3)
    row = driver.add("row", 3, max_tokens=4)
    row.adapter = Adapter("x", "/", "digest")
    others = [driver.add(f"row {index}", 3, max_tokens=4) for index in range(3)]
    given = driver.steps(8 * SHARE * TURN)
    assert all(map(has_ended, others))
    assert waits(row)
    assert given[True] >= 7 * SHARE * TURN


@pytest.mark.parametrize("max_num_seqs", [1, 4])
def test_an_urgent_one_waits_for_one_turn_more_at_most(max_num_seqs: int) -> None:
    """Steps from its arrival to its first token, the same urgent ones with rows beside them and without."""
    longest_waits = []
    for beside in (0, 8):
        driver = Saturated(max_num_seqs, waiting=1)
        for index in range(beside):
            driver.add(f"row {index}", 6, max_tokens=10_000, priority=0)
        arrived: dict[str, int] = {}
        longest = 0
        for step in range(3000 // max_num_seqs):
            for each in driver.urgent[-max_num_seqs - 2 :]:
                arrived.setdefault(each.request_id, step)
            for name in driver.step():
                longest = max(longest, step - arrived.pop(name, step))
        longest_waits.append(longest)
    alone, beside_rows = longest_waits
    assert beside_rows <= alone + LONGEST_TURN + 8


def test_a_running_prompt_of_a_row_goes_on_though_urgent_prompts_take_all_tokens() -> None:
    driver = Driver(num_blocks=400, max_num_seqs=8, max_num_batched_tokens=32)
    row = driver.add("row", 200, max_tokens=2)
    driver.step()
    assert runs(row)
    for step in range(SHARE * TURN):
        if len(driver.scheduler.running) < 4:
            driver.add(f"urgent {step}", 60, max_tokens=1, priority=-1)
        assert driver.step()
    assert has_ended(row)
    assert row.num_recomputed_tokens == 0


def test_a_large_row_gets_its_blocks_though_small_urgent_ones_would_take_each_that_is_free() -> None:
    driver = Saturated(8, waiting=8, length=3, tokens=8, num_blocks=30)
    row = driver.add("row", 20 * SIZE, max_tokens=4)
    driver.steps(2 * SHARE * TURN)
    assert has_ended(row)


def test_a_large_row_does_not_make_urgent_ones_wait_until_the_longest_has_ended() -> None:
    """They pass it as often as one may be passed; then the last of them make way."""
    driver = Driver(num_blocks=300, max_num_seqs=4, max_num_batched_tokens=64)
    for index in range(3):
        driver.add(f"long {index}", 3, max_tokens=380, priority=-1)
    for _ in range(180):
        driver.step()
    row = driver.add("row", 200 * SIZE, max_tokens=2)
    most, started = 0, 0
    for step in range(190):
        short = driver.add(f"short {step}", 3, max_tokens=1, priority=-1)
        driver.step()
        started += short.ending is not None
        most = max(most, row.overtaken)
        if row.num_computed_tokens:
            break
    assert row.num_computed_tokens
    assert most == MOST_OVERTAKES
    assert started >= MOST_OVERTAKES


def test_urgent_ones_that_run_out_of_blocks_take_none_from_a_promoted_row() -> None:
    driver = Saturated(4, waiting=3, length=3, tokens=40, num_blocks=30)
    row = driver.add("row", 3, max_tokens=TURN)
    while row.turn_ends is None or not runs(row):
        driver.step()
    before = driver.scheduler.num_preemptions
    while not has_ended(row):
        driver.step()
        assert not waits(row)
    assert driver.scheduler.num_preemptions > before


def test_where_urgent_ones_leave_rows_their_part_anyway_none_is_promoted() -> None:
    driver = Driver(num_blocks=200, max_num_seqs=3, max_num_batched_tokens=32)
    for index in range(6):
        driver.add(f"row {index}", 3, max_tokens=900)
    for index in range(600):
        if index % 8 == 0:
            driver.add(f"urgent {index}", 3, max_tokens=9, priority=-1)
        driver.step()
        assert not driver.scheduler._promotion.promoted


def test_a_promoted_row_that_is_aborted_leaves_its_place_to_the_next() -> None:
    driver = Saturated(1, tokens=3)
    rows = [driver.add(f"row {index}", 5, max_tokens=3 * TURN) for index in range(2)]
    while not driver.scheduler._promotion.promoted:
        driver.step()
    driver.scheduler.finish(rows[0])
    driver.scheduler.check_integrity()
    while not has_ended(rows[1]):
        driver.step()


def test_with_one_priority_nothing_is_promoted_whichever_it_is() -> None:
    """And steps are the same: what each sequence is given does not depend on the number that all have."""
    given = []
    for priority in (0, 7):
        driver = Driver(num_blocks=20, max_num_seqs=3, max_num_batched_tokens=9)
        for index in range(20):
            driver.add(str(index), 1 + index % 7, max_tokens=1 + index % 30, priority=priority)
        given.append([driver.step() for _ in range(300)])
        assert not driver.scheduler._promotion.is_due
    assert given[0] == given[1]

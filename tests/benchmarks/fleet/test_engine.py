"""A simulated engine takes steps as the real one: a token a row, prompts within a budget, rows that come meanwhile."""

from benchmarks.fleet.costs import StepCost
from benchmarks.fleet.engine import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Engine
from benchmarks.fleet.rows import Rows

A_SECOND_A_STEP = StepCost(base=1.0, per_row=0.0, per_prompt_token=0.0)


def engine(rows: Rows, cost: StepCost = A_SECOND_A_STEP, *, static: bool = False) -> Engine:
    return Engine(rows, cost, static=static)


def ends(one: Engine, *waiting: int) -> dict[int, float]:
    """When each row's answer is complete."""
    one.waiting.extend(waiting)
    found: dict[int, float] = {}
    now = 0.0
    while due := one.launch(now):
        now = due
        found |= dict.fromkeys(one.land(), now)
    return found


def test_a_row_takes_a_step_a_token_and_its_prompt_is_in_the_first() -> None:
    assert ends(engine(Rows([5, 5], [3, 1])), 0, 1) == {0: 3.0, 1: 1.0}


def test_a_static_batch_ends_with_its_longest_row() -> None:
    assert ends(engine(Rows([5, 5, 5], [3, 1, 2]), static=True), 0, 1, 2) == dict.fromkeys((0, 1, 2), 3.0)


def test_a_long_prompt_is_computed_in_steps_of_the_budget() -> None:
    assert ends(engine(Rows([2 * MAX_NUM_BATCHED_TOKENS], [1])), 0) == {0: 2.0}
    assert ends(engine(Rows([2 * MAX_NUM_BATCHED_TOKENS + 1], [1])), 0) == {0: 3.0}


def test_rows_beyond_the_batch_begin_as_others_end() -> None:
    rows = Rows([1] * (MAX_NUM_SEQS + 1), [4] + [2] * MAX_NUM_SEQS)
    found = ends(engine(rows), *range(len(rows)))
    assert found[MAX_NUM_SEQS] == 4.0, "it begins when the requests of 2 tokens have ended"
    assert ends(engine(rows, static=True), *range(len(rows)))[MAX_NUM_SEQS] == 6.0


def test_a_step_costs_by_its_rows_and_by_tokens_of_prompts_that_give_none() -> None:
    cost = StepCost(base=100.0, per_row=10.0, per_prompt_token=1.0)
    assert ends(engine(Rows([5, 3], [1, 1]), cost), 0, 1) == {0: 126.0, 1: 126.0}


def test_a_row_that_comes_during_a_run_begins_with_the_next_step() -> None:
    one = engine(Rows([1, 1], [10, 2]))
    one.waiting.append(0)
    assert one.launch(0.0) == 1.0
    one.land()
    assert one.launch(1.0) == 10.0, "nine steps are one run"
    one.waiting.append(1)
    assert one.interrupt(3.5) == 4.0
    assert one.land() == []
    assert one.launch(4.0) == 5.0
    assert one.land() == []
    assert one.launch(5.0) == 6.0
    assert one.land() == [1]
    assert one.launch(6.0) == 10.0
    assert one.land() == [0]


def test_what_is_computed_of_a_row_is_its_prompt_and_its_tokens_so_far() -> None:
    one = engine(Rows([7, 9], [10, 5]))
    one.waiting.append(0)
    one.launch(0.0)
    one.land()
    one.launch(1.0)
    one.waiting.append(1)
    assert dict(one.computed(4.5)) == {0: 7 + 4, 1: 0}


def test_a_system_prompt_is_computed_once_while_it_is_kept() -> None:
    rows = Rows([1] * 40, [1] * 40, prefixes=[row % 2 for row in range(40)], prefix_tokens=50)
    one = engine(rows)
    ends(one, *range(40))
    assert one.prefix_tokens == 2 * 50
    many = Rows([1] * 40, [1] * 40, prefixes=[row % 20 for row in range(40)], prefix_tokens=50)
    other = engine(many)
    ends(other, *range(40))
    assert other.prefix_tokens == 40 * 50, "each was given up before it came again"

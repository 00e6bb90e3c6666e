"""CreditAccounts are shared max-min fairly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.manager.credits import ACTIVE_FOR, IDLE_LIMIT, CreditAccounts, max_min_shares


@pytest.mark.parametrize(
    ("capacity", "demands", "shares"),
    [
        (10, [math.inf], [10]),
        (10, [2], [10]),
        (10, [math.inf, math.inf], [5, 5]),
        (10, [2, math.inf], [2, 8]),
        (9, [2, 3, math.inf], [2, 3, 4]),
        (10, [1, 1], [5, 5]),
        (2, [math.inf] * 4, [1, 1, 1, 1]),
        (10, [], []),
    ],
)
def test_small_demands_are_met_and_the_rest_is_divided(capacity: int, demands: list[float], shares: list[int]) -> None:
    assert max_min_shares(capacity, demands) == shares


@given(st.lists(st.one_of(st.integers(1, 100), st.just(math.inf)), min_size=1, max_size=20), st.integers(0, 500))
def test_all_is_given_out_and_who_wants_more_has_as_much_as_anybody(demands: list[float], beyond: int) -> None:
    capacity = len(demands) + beyond
    shares = max_min_shares(capacity, demands)
    assert sum(shares) == capacity
    unmet = [share for share, demand in zip(shares, demands, strict=True) if share < demand]
    assert all(share >= max(shares) - 1 for share in unmet)


def test_nobody_has_credit_before_the_capacity_is_known() -> None:
    accounts = CreditAccounts()
    accounts.join(1)
    assert accounts.divide(0.0) == {}


def test_an_idle_client_leaves_its_share_to_the_others_and_gets_it_back_with_its_next_request() -> None:
    accounts = CreditAccounts()
    accounts.set_capacity(20)
    for client in (1, 2):
        accounts.join(client)
    for _ in range(10):
        accounts.take(1, now=0.0)
    assert accounts.divide(0.0) == {1: 20, 2: IDLE_LIMIT}
    accounts.take(2, now=5.0)
    assert accounts.due, "it waits for a tick"
    accounts.take(2, now=5.0)
    assert accounts.divide(5.0)[2] > IDLE_LIMIT
    accounts.give_back(2, now=6.0)
    accounts.give_back(2, now=6.0)
    assert accounts.divide(6.1 + ACTIVE_FOR)[2] == IDLE_LIMIT


def test_limits_are_told_when_they_change_only() -> None:
    accounts = CreditAccounts()
    accounts.set_capacity(8)
    accounts.join(1)
    assert accounts.divide(0.0) == {1: 8}
    assert accounts.divide(1.0) == {}
    accounts.join(1)
    assert accounts.divide(2.0) == {1: 8}


def test_a_client_that_uses_its_first_credits_gets_its_share_before_the_next_tick() -> None:
    accounts = CreditAccounts()
    accounts.set_capacity(20)
    for client in (1, 2):
        accounts.join(client)
    for _ in range(20):
        accounts.take(1, now=0.0)
    accounts.divide(0.0)
    for _ in range(IDLE_LIMIT):
        assert not accounts.divide(0.1).get(2)
        accounts.take(2, now=0.1)
    assert accounts.due
    assert accounts.divide(0.1)[2] == 10


def test_each_of_several_jobs_may_send_what_fills_the_engines_however_many_clients_it_has() -> None:
    accounts = CreditAccounts()
    accounts.set_capacity(20)
    for client in (1, 2, 3):
        accounts.join(client)
        for _ in range(20):
            accounts.take(client, 0.0, "first" if client == 1 else "second")
    assert accounts.divide(0.0) == {1: 40, 2: 20, 3: 20}
    for _ in range(20):
        accounts.give_back(1, 1.0)
    assert accounts.divide(1.1 + ACTIVE_FOR) == {1: IDLE_LIMIT, 2: 10, 3: 10}

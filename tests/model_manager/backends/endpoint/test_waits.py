"""Waits are computed from times that the test gives: back-off, Retry-After, the circuit of a server, rate limits."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.backends.endpoint.circuit import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Circuit
from millrace.model_manager.backends.endpoint.limits import RateLimit, UsedPart
from millrace.model_manager.backends.endpoint.retrying import LONGEST, backoff, retry_after

NOW = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC)


def test_backoff_doubles_up_to_a_limit_and_is_spread_by_chance() -> None:
    assert [backoff(failures, lambda: 1.0) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert backoff(1000, lambda: 1.0) == LONGEST
    assert backoff(1000, lambda: 0.0) == 0.0
    assert backoff(1, lambda: 0.0, least=0.1) == 0.1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("Tue, 24 Nov 2026 12:00:30 GMT", 30.0),
        ("Tue, 24 Nov 2026 11:00:00 GMT", 0.0),
        ("99999999", 3600.0),
        ("soon", None),
        ("", None),
        ("Tue, 99 Nov 2026", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds


@given(st.text(max_size=40))
def test_retry_after_takes_any_text(header: str) -> None:
    seconds = retry_after(header, NOW)
    assert seconds is None or 0 <= seconds <= 3600


def opened() -> Circuit:
    circuit = Circuit()
    outcomes = [circuit.failed(0.0, was_test=circuit.begin()) for _ in range(FAILURES)]
    assert outcomes == [False] * (FAILURES - 1) + [True]
    return circuit


def test_a_circuit_opens_after_failures_in_a_row_and_a_success_between_them_counts() -> None:
    circuit = Circuit()
    for _ in range(3):
        for _ in range(FAILURES - 1):
            assert not circuit.failed(0.0, was_test=False)
        circuit.succeeded()
    assert circuit.is_closed
    assert opened().opens_at() == FIRST_PAUSE


def test_one_request_tests_an_open_circuit_and_its_success_closes_it() -> None:
    circuit = opened()
    assert circuit.begin()
    assert circuit.opens_at() == math.inf
    circuit.succeeded()
    assert circuit.opens_at() == -math.inf


def test_each_failed_test_doubles_the_pause_up_to_a_limit() -> None:
    circuit, now, pauses = opened(), FIRST_PAUSE, []
    for _ in range(8):
        assert circuit.failed(now, was_test=circuit.begin())
        pauses.append(circuit.opens_at() - now)
        now = circuit.opens_at()
    assert pauses == [2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]


def test_failures_of_requests_from_before_change_nothing_and_a_test_that_is_given_up_is_repeated() -> None:
    circuit = opened()
    assert not circuit.failed(0.9, was_test=False)
    assert circuit.opens_at() == FIRST_PAUSE
    assert circuit.begin()
    circuit.forgotten(was_test=True)
    assert circuit.opens_at() == FIRST_PAUSE


def test_a_server_that_answers_about_itself_is_tested_again_after_the_first_pause() -> None:
    circuit, now = opened(), FIRST_PAUSE
    for _ in range(3):
        circuit.failed(now, was_test=circuit.begin())
        now = circuit.opens_at()
    circuit.failed(now, was_test=circuit.begin())
    circuit.eased(now)
    assert circuit.opens_at() == now + FIRST_PAUSE
    circuit.succeeded()
    circuit.eased(now)
    assert circuit.is_closed


class Clock:
    """Time that passes when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(1, 10_000), st.lists(st.floats(0.1, 5_000), min_size=1, max_size=50))
def test_no_minute_gets_more_than_its_amount_and_the_largest_request(per_minute: float, amounts: list[float]) -> None:
    clock = Clock()
    limit = RateLimit(per_minute, clock)
    taken: list[tuple[float, float]] = []
    for amount in amounts:
        clock.now += limit.wait(amount)
        limit.add(-amount)
        taken.append((clock.now, amount))
    for began, _ in taken:
        minute = sum(amount for at, amount in taken if began <= at < began + 60 - 1e-6)
        assert minute <= per_minute + max(1.0, per_minute / 60) + max(amounts) + 1e-6 * per_minute


def test_what_was_not_needed_can_be_taken_by_others() -> None:
    clock = Clock()
    limit = RateLimit(60, clock)
    limit.add(-30)
    assert limit.wait(1) == pytest.approx(30)
    limit.add(29)
    assert limit.wait(1) == pytest.approx(1)


def test_one_who_waits_goes_on_when_others_give_back() -> None:
    async def both() -> None:
        limit = RateLimit(60_000, Clock())
        await limit.take(4096)
        waiting = asyncio.create_task(limit.take(4096))
        await asyncio.sleep(0)
        assert not waiting.done()
        limit.add(4096)
        await waiting  # the clock stands still, so only what was given back ends this

    asyncio.run(both())


def test_a_minute_is_the_longest_wait_and_the_most_that_can_be_given_back() -> None:
    clock = Clock()
    limit = RateLimit(600, clock)
    limit.add(-(10**12))
    assert limit.wait(5) <= 60
    limit.add(10**12)
    limit.add(-600)
    assert limit.wait(1) > 0


def test_what_is_used_of_estimates_is_learnt() -> None:
    used = UsedPart()
    assert used.part == 1.0
    for _ in range(50):
        used.learn(4096, 7)
    assert used.part == pytest.approx(7 / 4096, rel=0.01)
    used.learn(1, 10**9)
    assert used.part < 1

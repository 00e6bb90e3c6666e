"""A client's outstanding requests: who waits, what is owed, what a new connection is sent."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.client.ledger import Ledger, Waiter
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import NewTokens, Request
from millrace.model_manager.wire.sampling import SamplingParams


def request(name: str, prompt: int = 1) -> Request:
    return Request(request_id=name, prompt_token_ids=[prompt], params=SamplingParams())


def test_the_first_answer_after_a_cancellation_is_not_the_second_submits() -> None:
    ledger = Ledger()
    first, second = Waiter(0), Waiter(0)
    ledger.add(request("a"), first)
    assert ledger.cancel("a") == [first]
    ledger.add(request("a"), second)
    assert ledger.in_use == 2
    assert ledger.answered("a") is None
    pending = ledger.answered("a")
    assert pending is not None
    assert pending.waiters == [second]
    assert ledger.in_use == 0


def test_who_asks_for_the_same_waits_for_the_same_and_for_another_prompt_is_refused() -> None:
    ledger = Ledger()
    assert not ledger.join(request("a"), Waiter(0))
    ledger.add(request("a"), Waiter(0))
    assert ledger.join(request("a"), Waiter(0))
    with pytest.raises(InvalidRequest):
        ledger.join(request("a", prompt=2), Waiter(0))
    pending = ledger.answered("a")
    assert pending is not None
    assert len(pending.waiters) == 2


def test_one_future_that_is_cancelled_leaves_the_others_waiting() -> None:
    ledger = Ledger()
    first, second = Waiter(0), Waiter(0)
    ledger.add(request("a"), first)
    ledger.join(request("a"), second)
    assert ledger.cancel("a", only=first.future) is None
    assert ledger.cancel("a", only=second.future) == [second]
    assert not ledger.is_waited_for()


def test_a_new_connection_is_sent_what_is_waited_for_in_order() -> None:
    ledger = Ledger()
    for name in "abc":
        ledger.add(request(name), Waiter(0))
    ledger.cancel("b")
    assert [each.request_id for each in ledger.reconnected(3.0)] == ["a", "c"]
    assert ledger.in_use == 2
    ledger.reconnected(5.0)
    pending = ledger.answered("a")
    assert pending is not None
    assert pending.lost == [3.0, 5.0]


def test_tokens_of_a_request_that_is_not_streamed_are_kept_for_the_next_manager_and_shown_to_nobody() -> None:
    ledger = Ledger()
    ledger.add(request("a"), Waiter(0))
    assert ledger.progressed(NewTokens("a", 0, [1, 2])) is None
    assert ledger.progressed(NewTokens("a", 2, [3])) is None
    assert [each.output_token_ids for each in ledger.reconnected(1.0)] == [[1, 2, 3]]
    assert ledger.progressed(NewTokens("a", 0, [4, 5])) is None, "it ran there already, with tokens of its own"
    assert ledger.progressed(NewTokens("a", 3, [7])) is None, "behind a gap"
    assert [each.output_token_ids for each in ledger.reconnected(2.0)] == [[4, 5]]


@given(st.lists(st.tuples(st.sampled_from("acr"), st.integers(0, 3)), max_size=60))
def test_each_submit_is_owed_one_answer_whatever_is_cancelled(events: list[tuple[str, int]]) -> None:
    ledger, owed = Ledger(), Counter[str]()
    waiting: set[str] = set()
    for kind, number in events:
        name = str(number)
        if kind == "a" and not ledger.join(request(name), Waiter(0)):
            ledger.add(request(name), Waiter(0))
            owed[name] += 1
            waiting.add(name)
        elif kind == "c":
            assert (ledger.cancel(name) is not None) == (name in waiting)
            waiting.discard(name)
        elif kind == "r" and owed[name]:
            owed[name] -= 1
            if ledger.answered(name) is not None:
                waiting.remove(name)
                assert not owed[name]
    assert ledger.in_use == owed.total()
    assert ledger.is_waited_for() == bool(waiting)

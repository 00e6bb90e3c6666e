"""A session's attempts to connect again: when it makes them, and what it tells those who wait."""

import pytest

from millrace.model_manager.client.attempts import Attempts
from millrace.model_manager.wire.errors import EngineLost, ManagerUnavailable, ModelNotFound, RequestAborted

MOST_LOST = 5


def test_the_first_loss_is_made_good_at_once_and_later_ones_after_longer_and_longer() -> None:
    attempts = Attempts(MOST_LOST)
    pauses = [attempts.lost(is_waited_for=True) or 0.0 for _ in range(MOST_LOST)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert 0.0 < pauses[1] < pauses[-1] <= 2.0
    assert attempts.lost(is_waited_for=True) is None


def test_where_none_may_be_lost_the_first_loss_is_one_too_many() -> None:
    assert Attempts(0).lost(is_waited_for=True) is None


def test_many_losses_may_be_allowed() -> None:
    attempts = Attempts(10**6)
    assert {attempts.lost(is_waited_for=True) for _ in range(2000)} >= {0.0, 2.0}


def test_a_result_makes_the_next_loss_a_first_one() -> None:
    attempts = Attempts(MOST_LOST)
    for _ in range(10 * MOST_LOST):
        assert attempts.lost(is_waited_for=True) == 0.0
        attempts.succeeded()


def test_a_connection_that_nobody_waits_for_is_not_wanted_again() -> None:
    attempts = Attempts(MOST_LOST)
    assert attempts.wanted
    attempts.lost(is_waited_for=False)
    assert not attempts.wanted


def test_who_waited_at_a_setback_is_told_and_who_comes_later_may_try_again() -> None:
    attempts = Attempts(MOST_LOST)
    before = attempts.setbacks
    attempts.raise_if_over(before)
    for _ in range(MOST_LOST):
        attempts.lost(is_waited_for=True)
    attempts.give_up(ManagerUnavailable("gone"), for_good=False)
    with pytest.raises(ManagerUnavailable, match="gone"):
        attempts.raise_if_over(before)
    attempts.raise_if_over(attempts.setbacks)
    assert attempts.lost(is_waited_for=True) == 0.0


def test_what_is_given_up_for_good_is_told_to_everybody_by_its_first_reason_until_all_is_closed() -> None:
    attempts = Attempts(MOST_LOST)
    attempts.give_up(ModelNotFound("no such model"), for_good=True)
    attempts.give_up(EngineLost("later"), for_good=True)
    for setbacks in (0, attempts.setbacks):
        with pytest.raises(ModelNotFound, match="no such model"):
            attempts.raise_if_over(setbacks)
    attempts.close(RequestAborted("closed"))
    with pytest.raises(RequestAborted):
        attempts.raise_if_over(attempts.setbacks)

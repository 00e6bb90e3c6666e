"""The life of a server's own requests."""

from __future__ import annotations

import time

import pytest

from millrace.serving.http.observers import Observed
from millrace.serving.window.latest_requests import RecentRequests
from tests.serving.metrics.scrapes import answer


def ended(*requests: Observed) -> RecentRequests:
    recent = RecentRequests()
    for each in requests:
        recent.started(each)
        recent.finished(each)
    return recent


@pytest.mark.parametrize("first_token", [None, 13.0])
def test_a_request_is_queued_then_in_prefill_then_in_decode(first_token: float | None) -> None:
    request = Observed("/v1/completions", since=10.0, first_token=first_token, ended=20.0, generated_tokens=5)
    request.answers = (answer(5, 2.5, 9.5, ended=20.0, first_token=first_token),)  # first scheduled after 0.5 s
    (life,) = ended(request).lives()
    assert (life.queued, life.prefill, life.decode) == (1.0, 2.0, 7.0)
    assert (life.state, life.generated_tokens) == ("done", 5)


def test_a_request_without_tokens_has_no_decode() -> None:
    request = Observed("/v1/embeddings", since=10.0, ended=12.0, status=200, answers=(answer(0, 0.0, 1.5, ended=12.0),))
    (life,) = ended(request).lives()
    assert (life.queued, life.prefill, life.decode) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("streams", [True, False])
def test_a_request_with_several_prompts_is_in_decode_from_its_first_token_to_its_last(streams: bool) -> None:
    """The second prompt waits here until the first is answered, and the third still runs then."""
    seen = [(2.5, 4.5, 15.0), (2.5, 4.5, 19.0), (3.0, 9.0, 20.0)]  # first and last token, and when it was here
    answers = [
        answer(5, first, last, ended=ended, first_token=ended - last + first if streams else None)
        for first, last, ended in seen
    ]
    request = Observed("/v1/completions", since=10.0, first_token=13.0 if streams else None, ended=20.0)
    request.answers = tuple(answers)
    (life,) = ended(request).lives()
    assert (life.queued, life.prefill, life.decode) == (1.0, 2.0, 7.0)


@pytest.mark.parametrize("ended_at", [12.0, 20.0])
def test_the_first_part_of_a_stream_that_was_held_back_makes_no_request_longer(ended_at: float) -> None:
    request = Observed("/v1/completions", since=10.0, first_token=ended_at, ended=ended_at, status=200)
    request.answers = (answer(5, 1.0, ended_at - 10.5, ended=ended_at, first_token=ended_at),)
    (life,) = ended(request).lives()
    assert (life.queued, life.queued + life.prefill + life.decode) == (1.0, ended_at - 10.0)


@pytest.mark.parametrize(("status", "error", "told"), [(400, "", "400"), (499, "hung_up", "hung_up")])
def test_a_request_that_failed_says_why(status: int, error: str, told: str) -> None:
    (life,) = ended(Observed("/v1/completions", since=10.0, ended=12.0, status=status, error=error)).lives()
    assert (life.state, life.error, life.prefill) == ("failed", told, 2.0)


@pytest.mark.parametrize(("status", "error"), [(200, "engine_error"), (499, "hung_up")])
def test_a_stream_that_failed_was_in_decode_from_its_first_token(status: int, error: str) -> None:
    request = Observed("/v1/completions", since=10.0, first_token=13.0, ended=20.0, status=status, error=error)
    (life,) = ended(request).lives()
    assert (life.state, life.queued, life.prefill, life.decode) == ("failed", 0.0, 3.0, 7.0)


def test_what_runs_comes_last_as_far_as_it_has_come() -> None:
    recent = ended(Observed("/v1/completions", status=200))
    now = time.monotonic()
    recent.started(Observed("/v1/completions", since=now - 5.0))
    recent.started(Observed("/v1/chat/completions", since=now - 5.0, first_token=now - 3.0))
    states = [(life.of, life.state) for life in recent.lives()]
    assert states == [
        ("/v1/completions", "done"),
        ("/v1/completions", "running"),
        ("/v1/chat/completions", "running"),
    ]
    waiting, answering = recent.lives()[1:]
    assert waiting.prefill >= 5.0
    assert waiting.decode == 0.0
    assert answering.prefill == pytest.approx(2.0)
    assert answering.decode >= 3.0


def test_requests_that_ask_the_model_nothing_are_not_shown() -> None:
    assert ended(Observed("/tokenize", status=200)).lives() == []

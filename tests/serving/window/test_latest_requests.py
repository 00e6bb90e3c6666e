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
    request.outputs = (answer(5, 2.5, 9.5),)  # first scheduled after 0.5 s
    (life,) = ended(request).lives()
    assert (life.queued, life.prefill, life.decode) == (1.0, 2.0, 7.0)
    assert (life.state, life.generated_tokens) == ("done", 5)


def test_a_request_without_tokens_has_no_decode() -> None:
    request = Observed("/v1/embeddings", since=10.0, ended=12.0, status=200, outputs=(answer(0, 0.0, 1.5),))
    (life,) = ended(request).lives()
    assert (life.queued, life.prefill, life.decode) == (1.0, 1.0, 0.0)


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

"""Busy servers, and the limits of a job: rows wait no longer than they must, and go elsewhere if they can."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from millrace.model_manager.backends.endpoint import sending
from millrace.model_manager.backends.endpoint.retrying import LEAST_BUSY
from tests.model_manager.backends.endpoint_engines import (
    answers,
    engine_for,
    no_long_waits,
    refusal,
    servers,
    text,
)
from tests.model_manager.backends.stand_in_server import Servers, text_for

__all__ = ["no_long_waits", "servers"]


def test_a_busy_server_is_waited_for_however_often_it_says_so(servers: Servers) -> None:
    busy = (429, {"Retry-After": "0"})
    server = servers.start(lambda _prompt, tries: busy if tries <= 20 else None)
    with engine_for(server.url, retries=1) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"
    assert server.tries == {"a": 21}


def test_a_server_without_a_free_slot_is_busy_though_it_says_404(servers: Servers) -> None:
    server = servers.start(lambda _prompt, tries: 404 if tries <= 20 else None)
    with engine_for(server.url, retries=1) as engine:
        assert text(answers(engine, ["slot unavailable"])["slot unavailable"]) == "<slot unavailable>"


@pytest.mark.parametrize("date", ["0", "Tue, 24 Nov 2020 11:00:00 GMT", None])
def test_a_busy_server_that_names_no_time_is_asked_again_after_a_wait_that_grows(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, date: str | None
) -> None:
    waits: list[tuple[int, float]] = []

    def waited(tries: int, *, least: float) -> float:
        waits.append((tries, least))
        return 0.0

    monkeypatch.setattr(sending, "backoff", waited)
    busy = (429, {"Retry-After": date} if date else {})
    with engine_for(servers.start(lambda _prompt, tries: busy if tries <= 4 else None).url) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"
    assert waits == [(tries, LEAST_BUSY) for tries in (1, 2, 3, 4)]


def test_a_row_whose_server_asks_for_a_pause_goes_to_another_at_once(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "backoff", lambda _failures, **_least: 3600.0)
    busy = servers.start(lambda _prompt, _tries: (429, {"Retry-After": "3600"}))
    free = servers.start()
    with engine_for(busy.url, free.url, max_num_seqs=8) as engine:
        prompts = [f"row {index}" for index in range(50)]
        assert {text(each) for each in answers(engine, prompts).values()} == set(map(text_for, prompts))
    assert 0 < len(busy.seen) <= 8


def test_a_pause_that_a_server_asks_for_is_no_silence(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "backoff", lambda _failures, **_least: 0.1)
    busy = (429, {"Retry-After": "0.2"})
    server = servers.start(lambda _prompt, tries: busy if tries <= 3 else 503 if tries == 4 else None)
    with engine_for(server.url, down_timeout=0.05) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            (429, {"Retry-After": "0.2"}),
            r"^a request is sent again after 0.2 s, as the server asks: \S+ answered 429: no a",
        ),
        (500, r"^a request is sent again: \S+ answered 500: no a"),
    ],
)
def test_the_log_says_once_that_requests_are_sent_again_and_why(
    servers: Servers, caplog: pytest.LogCaptureFixture, fault: Any, said: str
) -> None:
    server = servers.start(lambda _prompt, tries: fault if tries <= 3 else None)
    with engine_for(server.url, retries=3) as engine, caplog.at_level(logging.WARNING):
        assert text(answers(engine, ["a"])["a"]) == "<a>"
    (message,) = caplog.messages
    assert re.match(said, message)


def test_tokens_that_answers_do_not_need_are_there_for_others(servers: Servers) -> None:
    with engine_for(servers.start().url, tokens_per_minute=60_000) as engine:
        assert len(answers(engine, [f"row {index}" for index in range(100)], max_tokens=4096)) == 100


def test_rows_beyond_the_requests_of_a_minute_wait_whichever_server_is_free(servers: Servers) -> None:
    one, other = servers.start(), servers.start()
    with engine_for(one.url, other.url, requests_per_minute=1) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"
        kind, _ = refusal(answers(engine, ["b"], deadline=0.5)["b"])
    assert kind == "DeadlineExceeded"
    assert one.tries | other.tries == {"a": 1}


def test_a_try_that_fails_is_one_of_the_requests_of_a_minute(servers: Servers) -> None:
    server = servers.start(lambda prompt, _tries: 500 if prompt == "a" else None)
    with engine_for(server.url, requests_per_minute=1, retries=0) as engine:
        assert refusal(answers(engine, ["a"])["a"])[0] == "ServerFailed"
        assert refusal(answers(engine, ["b"], deadline=0.5)["b"])[0] == "DeadlineExceeded"
    assert server.tries == {"a": 1}


def test_requests_within_a_minutes_number_are_all_answered(servers: Servers) -> None:
    with engine_for(servers.start().url, requests_per_minute=60_000) as engine:
        assert len(answers(engine, [f"row {index}" for index in range(100)])) == 100


def test_a_server_that_is_busy_as_the_job_begins_lives_and_rests_while_others_work(servers: Servers) -> None:
    busy, free = servers.start(), servers.start()
    busy.about = (429, {"Retry-After": "3600"})
    with engine_for(busy.url, free.url) as engine:
        assert len(answers(engine, list("abcdefgh"))) == 8
    assert (len(busy.seen), len(free.seen)) == (0, 8)

"""The back end `endpoint` against real HTTP servers: every request ends in one answer, whatever the servers do."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.backends.endpoint import circuit, over_http, sending
from millrace.model_manager.backends.endpoint.engine import load
from millrace.model_manager.backends.endpoint.judging import Reply, judge
from millrace.model_manager.backends.endpoint.retrying import LEAST_BUSY
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.endpoint_options import EndpointOptions
from millrace.model_manager.wire.errors import (
    ConfigError,
    InvalidRequest,
    ModelError,
    ModelLoadFailed,
    ModelNotFound,
)
from millrace.model_manager.wire.messages import Failure, FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import answers, asked, drained, ended, engine_for, refusal, text
from tests.model_manager.backends.stand_in_server import Servers, serving, text_for
from tests.model_manager.manager.machine import PATIENCE, Machine, kill, machine
from tests.waiting import eventually

__all__ = ["machine"]

KEY = "sk-the-secret-key"
DIALECTS = ("openai", "openai-completions", "tgi", "triton", "kserve", "llama-completion")
FAULTS = ["page", "broken", "empty", "binary", "hang up", "hang up in the body", 408, 409, 424, 425, 500, 502, 503, 599]


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once; how long waits are is tested where they are computed."""
    monkeypatch.setattr(sending, "backoff", lambda _failures, **_least: 0.0)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with serving() as found:
        yield found


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_row_gets_its_own_answer_in_every_dialect(servers: Servers, dialect: str) -> None:
    server = servers.start()
    with engine_for(server.url, dialect=dialect) as engine:
        prompts = [f"row {index}" for index in range(300)]
        assert {key: text(each) for key, each in answers(engine, prompts).items()} == {
            prompt: text_for(prompt) for prompt in prompts
        }
        assert len(server.seen) == 300
        assert server.most_in_flight <= 64


def test_usage_and_the_reason_of_the_end_come_from_the_server(servers: Servers) -> None:
    with engine_for(servers.start().url) as engine:
        (output,) = answers(engine, ["a"]).values()
        assert isinstance(output, Output)
        assert (output.prompt_tokens, output.num_tokens, output.finish_reason) == (3, 5, FinishReason.STOP)
        assert 0 <= output.timings.queued <= output.timings.first_token <= output.timings.finished
        assert (engine.stats().prompt_tokens, engine.stats().generated_tokens) == (3, 5)
        assert (engine.info.max_model_len, engine.info.device) == (2048, "remote")


@pytest.mark.parametrize("usage", [None, "none", {"prompt_tokens": "3"}, {"completion_tokens": -1.5}, 7])
def test_an_answer_with_a_garbled_usage_is_an_answer_and_is_not_paid_for_again(servers: Servers, usage: Any) -> None:
    server = servers.start(lambda _prompt, _tries: {"usage": usage})
    with engine_for(server.url) as engine:
        (output,) = answers(engine, ["a"]).values()
    assert isinstance(output, Output)
    assert (output.text, output.prompt_tokens, output.num_tokens, server.tries) == ("<a>", 0, 0, {"a": 1})


@pytest.mark.parametrize("count", [10**18, 10**24, -1])
def test_a_count_that_cannot_be_is_cut(servers: Servers, count: int) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count}
    with engine_for(servers.start(lambda _prompt, _tries: {"usage": usage}).url) as engine:
        (output,) = answers(engine, ["a"]).values()
    assert isinstance(output, Output)
    assert output.num_tokens == output.prompt_tokens == min(max(0, count), 2**53)


def test_an_embedding_is_scaled_to_length_1_unless_the_request_says_otherwise(servers: Servers) -> None:
    with engine_for(servers.start().url) as engine:
        engine.add(Request("scaled", [], SamplingParams(), text="a", task="embed"))
        engine.add(Request("raw", [], SamplingParams(), text="a", task="embed", normalize=False))
        found = drained(engine)
    assert [output.vector for key in ("scaled", "raw") if isinstance(output := found[key], Output)] == [
        pytest.approx([0.6, 0.8]),
        pytest.approx([3.0, 4.0]),
    ]


def test_tgi_leaves_the_stop_string_in_and_the_output_does_not(servers: Servers) -> None:
    with engine_for(servers.start().url, dialect="tgi") as engine:
        engine.add(asked("cut", stop=("END",)))
        engine.add(asked("kept", stop=("END",), include_stop_str_in_output=True))
        found = drained(engine)
    assert {key: (text(each), getattr(each, "stop_reason", None)) for key, each in found.items()} == {
        "cut": ("<cut>", "END"),
        "kept": ("<kept>END", "END"),
    }


def test_a_wrong_content_type_does_not_matter(servers: Servers) -> None:
    with engine_for(servers.start(lambda _prompt, _tries: "plain text").url) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"


def test_an_urgent_request_overtakes_others_that_wait(servers: Servers) -> None:
    server = servers.start(lambda prompt, _tries: "wait" if prompt == "first" else None)
    with engine_for(server.url, max_num_seqs=1) as engine:
        for request in (asked("first"), asked("late"), asked("urgent", priority=-1)):
            engine.add(request)
        while not server.in_flight:
            engine.step()
        servers.set(server)
        assert set(drained(engine)) == {"first", "late", "urgent"}
    assert [each["messages"][0]["content"] for each in server.seen] == ["first", "urgent", "late"]


# ── what one row can suffer ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [400, 413, 418, 422])
def test_a_row_that_a_server_refuses_is_that_rows_failure(servers: Servers, status: int) -> None:
    server = servers.start(lambda prompt, _tries: status if prompt == "bad" else None)
    with engine_for(server.url) as engine:
        found = answers(engine, ["good", "bad"])
    assert text(found["good"]) == "<good>"
    assert refusal(found["bad"]) == ("InvalidRequest", f"{server.url} answered {status}: no bad")
    assert server.tries == {"good": 1, "bad": 1}


def test_tokens_that_answers_do_not_need_are_there_for_others(servers: Servers) -> None:
    with engine_for(servers.start().url, tokens_per_minute=60_000) as engine:
        assert len(answers(engine, [f"row {index}" for index in range(100)], max_tokens=4096)) == 100


def test_a_servers_message_is_cut(servers: Servers) -> None:
    with engine_for(servers.start(lambda _prompt, _tries: 400).url) as engine:
        _, message = refusal(answers(engine, ["x" * 5000])["x" * 5000])
    assert len(message) < 600
    assert message.endswith("x…")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_tried_again(servers: Servers, fault: Any) -> None:
    server = servers.start(lambda _prompt, tries: fault if tries == 1 else None)
    with engine_for(server.url) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"
    assert server.tries == {"a": 2}


@pytest.mark.parametrize("fault", ["empty", "hang up", 500])
def test_a_row_at_which_a_living_server_fails_each_time_fails_alone(servers: Servers, fault: Any) -> None:
    server = servers.start(lambda prompt, _tries: fault if prompt == "poison" else None)
    with engine_for(server.url, retries=2) as engine:
        found = answers(engine, ["poison", *map(str, range(20))])
    assert {text(each) for key, each in found.items() if key != "poison"} == {text_for(str(n)) for n in range(20)}
    kind, message = refusal(found["poison"])
    assert (kind, message.partition(";")[0]) == ("ServerFailed", "no answer in 3 tries")
    assert server.tries["poison"] == 3


@pytest.mark.parametrize("fault", [500, {"choices": [{"message": {"content": "a"}, "finish_reason": "?"}]}])
def test_many_poison_rows_are_dead_letters_and_the_others_get_their_answers(
    servers: Servers, caplog: pytest.LogCaptureFixture, fault: Any
) -> None:
    poison = {f"row {index}" for index in range(0, 400, 9)} - {"row 0", "row 9"}
    server = servers.start(lambda prompt, _tries: fault if prompt in poison else None)
    with engine_for(server.url) as engine, caplog.at_level(logging.WARNING):
        found = answers(engine, [f"row {index}" for index in range(400)])
    assert len(poison) == 43
    assert {key for key, each in found.items() if isinstance(each, Failure)} == poison
    assert {refusal(found[key])[0] for key in poison} == {"ServerFailed"}
    assert not any("gets no requests for a while" in message for message in caplog.messages)


def test_an_outage_that_a_server_declares_closes_it_for_a_second(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit, "FIRST_PAUSE", 0.01)
    server = servers.start(lambda _prompt, tries: 503 if tries <= 9 else None)
    with engine_for(server.url, retries=10) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"


def test_a_pause_that_a_server_asks_for_is_no_silence(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "backoff", lambda _failures, **_least: 0.1)
    busy = (429, {"Retry-After": "0.2"})
    server = servers.start(lambda _prompt, tries: busy if tries <= 3 else 503 if tries == 4 else None)
    with engine_for(server.url, down_timeout=0.05) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"


def test_a_busy_server_is_waited_for_however_often_it_says_so(servers: Servers) -> None:
    busy = (429, {"Retry-After": "0"})
    server = servers.start(lambda _prompt, tries: busy if tries <= 20 else None)
    with engine_for(server.url, retries=1) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"
    assert server.tries == {"a": 21}


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


DEEP = b'{"a":' * 50_000
GARBAGE = [
    {"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": 10**30}]},
    {"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": -1}]},
    (200, DEEP),
    (200, b"[" * 50_000 + b"]" * 50_000),
    (500, DEEP),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_one_reply_is_one_rows_failure(servers: Servers, garbage: Any) -> None:
    server = servers.start(lambda prompt, _tries: garbage if prompt == "bad" else None)
    with engine_for(server.url, retries=1) as engine:
        found = answers(engine, ["bad", "good"])
    assert refusal(found["bad"])[0] == "ServerFailed"
    assert text(found["good"]) == "<good>"


def test_an_error_that_is_nested_deeply_is_one_rows_failure(servers: Servers) -> None:
    with engine_for(servers.start(lambda _prompt, _tries: (400, DEEP)).url) as engine:
        assert refusal(answers(engine, ["a"])["a"])[0] == "InvalidRequest"


@pytest.mark.parametrize("vector", ["[1e39, 1.0]", "[1e200, 1e200]", "[1e999]", "[" + "9" * 400 + "]"])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_vector_beyond_32_bits_is_one_rows_failure(servers: Servers, vector: str, normalize: bool) -> None:
    body = b'{"data": [{"embedding": %s}]}' % vector.encode()
    with engine_for(servers.start(lambda _prompt, _tries: (200, body)).url, retries=1) as engine:
        engine.add(Request("a", [], SamplingParams(), text="a", task="embed", normalize=normalize))
        assert refusal(drained(engine)["a"])[0] == "ServerFailed"


def test_a_redirection_to_no_text_is_told_in_a_sentence_that_can_be_sent() -> None:
    with pytest.raises(ModelLoadFailed, match=r"it points to http://x/\?: name that in urls"):
        judge(Reply(302, {"Location": "http://x/\udcff"}, b""), "http://a", EndpointOptions(urls="http://a"))


def test_an_answer_without_end_is_not_read(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_for(servers.start().url, retries=0) as engine:
        monkeypatch.setattr(over_http, "MOST_BYTES", 120)
        kind, message = refusal(answers(engine, ["a"])["a"])
    assert (kind, "more than 120 bytes" in message) == ("ServerFailed", True)


def test_a_server_that_does_not_answer_in_time_fails_the_row_alone(servers: Servers) -> None:
    server = servers.start(lambda prompt, _tries: "wait" if prompt == "slow" else None)
    with engine_for(server.url, timeout=0.2, retries=1) as engine:
        found = answers(engine, ["slow", "fast"])
    assert text(found["fast"]) == "<fast>"
    assert "no answer in time" in refusal(found["slow"])[1]


def test_a_deadline_and_an_abort_end_a_request_that_its_server_holds(servers: Servers) -> None:
    server = servers.start(lambda _prompt, _tries: "wait")
    with engine_for(server.url) as engine:
        engine.add(asked("late", deadline=0.1))
        engine.add(asked("unwanted"))
        while server.in_flight < 2 and "late" not in server.tries:
            engine.step()
        engine.abort("unwanted")
        engine.abort("never heard of")
        found = drained(engine)
    assert refusal(found["late"]) == ("DeadlineExceeded", "no token after deadline=0.1 seconds")
    assert isinstance(found["unwanted"], Output)
    assert found["unwanted"].finish_reason is FinishReason.ABORT


@pytest.mark.parametrize(
    ("dialect", "params", "said"),
    [
        ("openai", {"top_k": 5}, "top_k=5: the dialect openai does not take it"),
        ("openai-completions", {"min_p": 0.5}, "min_p=0.5: the dialect openai-completions does not take it"),
        ("tgi", {"presence_penalty": 1.0}, "presence_penalty=1.0: the dialect tgi does not take it"),
        ("kserve", {"top_k": 5}, "top_k=5: the dialect kserve with the inputs of m does not take it"),
        ("tgi", {"constraint": {"choice": ["a"]}}, "constraint: the dialect tgi takes json_schema, regex, got choice"),
        ("openai", {"constraint": {"regex": "a"}}, "constraint: the dialect openai takes json, json_schema, got regex"),
    ],
)
def test_a_parameter_that_the_dialect_lacks_is_refused_by_name(
    servers: Servers, dialect: str, params: dict[str, Any], said: str
) -> None:
    with engine_for(servers.start().url, dialect=dialect) as engine:
        with pytest.raises(InvalidRequest) as refused:
            engine.add(Request("a", [], SamplingParams.parse(params), text="a"))
        assert str(refused.value) == said
        assert not engine.has_work()


def test_a_conversation_is_for_the_chat_route_alone(servers: Servers) -> None:
    said = Request("a", [], SamplingParams(), messages=[{"role": "user", "content": "hello"}])
    server = servers.start()
    with engine_for(server.url) as engine:
        engine.add(said)
        assert text(drained(engine)["a"]) == "<hello>"
    with (
        engine_for(server.url, dialect="tgi") as engine,
        pytest.raises(InvalidRequest, match=r"the dialect openai takes"),
    ):
        engine.add(said)


# ── what all rows suffer ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_key_ends_the_load_with_a_sentence_that_does_not_hold_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.start(key="another")
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(ModelLoadFailed) as failed, engine_for(server.url, key_env="MY_KEY"):
        pass
    assert str(failed.value) == (
        f"{server.url} answered 401: Incorrect API key provided: Bearer ***; it refuses the key in MY_KEY"
    )


def test_the_right_key_is_sent_and_shown_nowhere(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    server = servers.start(lambda _prompt, _tries: 400, key=KEY)
    monkeypatch.setenv("MY_KEY", KEY)
    with engine_for(server.url, key_env="MY_KEY") as engine:
        found = answers(engine, [KEY])
        assert KEY not in repr(engine.info)
    assert refusal(found[KEY]) == ("InvalidRequest", f"{server.url} answered 400: no ***")


SLASHED = "sk-a/b+c=d/secret"
SAID = {
    "plain": b'{"error": {"message": "bad key sk-a/b+c=d/secret"}}',
    "escaped": rb'{"error": {"message": "bad key sk-a\/b+c=d\/secret"}}',
    "by number": rb'{"error": {"message": "bad key sk-a\u002fb\u002Bc=d\u002fsecret"}}',
    "no JSON": rb"bad key sk-a\/b+c=d\/secret",
    "of a URL": b'{"error": {"message": "bad key sk-a%2Fb%2bc%3Dd%2Fsecret"}}',
    "cut": b"x" * 490 + b" sk-a/b+c=d/secret",
    "cut by the server": b"bad key sk-a/b+c=d/secr",
}


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("body", SAID.values(), ids=SAID)
def test_a_key_is_hidden_however_a_server_writes_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int, body: bytes
) -> None:
    monkeypatch.setenv("MY_KEY", SLASHED)
    server = servers.start(lambda _prompt, _tries: (status, body))
    with engine_for(server.url, key_env="MY_KEY", retries=1) as engine, caplog.at_level(logging.INFO):
        _, message = refusal(answers(engine, ["a"])["a"])
    for shown in (message, caplog.text):
        assert "sk-a" not in shown
        assert "secret" not in shown


def test_a_key_in_a_redirection_is_hidden(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", SLASHED)
    server = servers.start(lambda _prompt, _tries: (302, {"Location": "http://b/?k=sk-a%2Fb%2Bc%3Dd/secret&x=1"}))
    with engine_for(server.url, key_env="MY_KEY") as engine:
        engine.add(asked("a"))
        with pytest.raises(ModelLoadFailed, match=r"it points to http://b/\?k=\*\*\*&x=1: name that in urls"):
            drained(engine)


def test_an_answer_that_holds_the_key_is_not_touched(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "EMPTY")
    with engine_for(servers.start().url, key_env="MY_KEY") as engine:
        assert text(answers(engine, ["EMPTY stomach"])["EMPTY stomach"]) == "<EMPTY stomach>"


@pytest.mark.parametrize(("status", "kind"), [(401, ModelLoadFailed), (403, ModelLoadFailed), (404, ModelNotFound)])
def test_a_later_refusal_of_everything_raises_out_of_the_step(
    servers: Servers, status: int, kind: type[ModelError]
) -> None:
    server = servers.start(lambda _prompt, _tries: status)
    with engine_for(server.url) as engine:
        engine.add(asked("a"))
        with pytest.raises(kind, match=f"answered {status}: no a"):
            drained(engine)


def test_a_redirection_is_not_followed_with_the_key(servers: Servers) -> None:
    elsewhere = servers.start()
    server = servers.start(lambda _prompt, _tries: (307, {"Location": f"{elsewhere.url}/v1/chat/completions"}))
    with engine_for(server.url) as engine:
        engine.add(asked("a"))
        with pytest.raises(ModelLoadFailed, match="name that in urls"):
            drained(engine)
    assert not elsewhere.seen


def test_an_address_without_a_server_ends_the_load() -> None:
    with (
        pytest.raises(ModelLoadFailed, match=r"no server lives: http://127\.0\.0\.1:1/"),
        engine_for("http://127.0.0.1:1", retries=0),
    ):
        pass


def test_servers_that_answer_nothing_for_long_end_the_job_and_no_row(servers: Servers) -> None:
    server = servers.start()
    with engine_for(server.url, down_timeout=0.05) as engine:
        servers.stop(server)
        for index in range(10):
            engine.add(asked(str(index)))
        with pytest.raises(ModelLoadFailed, match="no server has answered a request for"):
            drained(engine)


def test_one_of_two_servers_dies_and_the_other_gets_its_requests(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    with engine_for(first.url, second.url, max_num_seqs=8, retries=0) as engine:
        prompts = [f"row {index}" for index in range(400)]
        for prompt in prompts:
            engine.add(asked(prompt))
        found: dict[str, Output | Failure] = {}
        while engine.has_work():
            result = engine.step()
            found |= {each.request_id: each for each in ended(result)}
            if len(found) > 50 and first.url in servers.urls:
                servers.stop(first)
        assert {key: text(each) for key, each in found.items()} == {prompt: text_for(prompt) for prompt in prompts}
    assert 0 < len(first.seen) < 400


def test_a_server_that_is_down_from_the_beginning_gets_nothing(servers: Servers) -> None:
    dead, alive = servers.start(), servers.start()
    servers.stop(dead)
    with engine_for(dead.url, alive.url, retries=0) as engine:
        assert len(answers(engine, list("abcdefgh"))) == 8
    assert len(alive.seen) == 8


def test_work_is_balanced(servers: Servers) -> None:
    both = [servers.start(), servers.start()]
    with engine_for(*(server.url for server in both), max_connections=3) as engine:
        answers(engine, [f"row {index}" for index in range(200)])
    assert sum(len(server.seen) for server in both) == 200
    assert all(len(server.seen) > 50 for server in both)
    assert all(server.most_in_flight <= 3 for server in both)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urls": "http://a", "dialekt": "tgi"}, "did you mean dialect?"),
        ({}, "urls is missing"),
        (
            {"urls": "http://[::1"},
            "urls='http://[::1': takes http://, https://, grpc:// or grpcs:// URLs: Invalid IPv6",
        ),
        ({"urls": "http://a:99999"}, "urls='http://a:99999': takes http://"),
        ({"urls": "http://me:secret@a:99999/?key=secret"}, "urls='a:99999/': takes http://"),
        ({"urls": "http://a:abc"}, "urls='http://a:abc': takes http://"),
        ({"urls": "ftp://a"}, "takes http://, https://, grpc:// or grpcs:// URLs"),
        ({"urls": "http://me:secret@a"}, "takes no user, query or fragment"),
        ({"urls": "http://a", "dialect": "soap"}, "takes one of kserve, llama-completion, openai"),
        ({"urls": "http://a", "timeout": 0}, "timeout=0.0: takes a finite number above 0"),
        ({"urls": "http://a", "key_env": "NO_SUCH_VARIABLE"}, "key_env='NO_SUCH_VARIABLE'"),
        ({"urls": "http://a", "extra_parameters": "topk"}, "did you mean top_k?"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(ModelConfig(model="m", backend="endpoint", backend_options=options), Path())
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_key_of_two_lines_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-one\nsecret")
    with pytest.raises(ConfigError, match=r"key_env='MY_KEY': takes a variable whose value is one line") as refused:
        EndpointOptions(urls="http://a", key_env="MY_KEY").key()
    assert "secret" not in str(refused.value)


def test_a_certificate_that_is_not_trusted_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    key = ConnectionKey("a", 443, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise aiohttp.ClientConnectorCertificateError(key, error)

    monkeypatch.setattr(aiohttp.ClientSession, "request", refuse)
    said = "its certificate is not trusted: self-signed certificate; SSL_CERT_FILE names a file of authorities to trust"
    with pytest.raises(ModelLoadFailed, match=said), engine_for("https://a", retries=0):
        pass


@pytest.mark.parametrize("dialect", ["triton", "kserve"])
def test_a_model_that_was_there_is_waited_for(servers: Servers, dialect: str) -> None:
    server = servers.start(lambda _prompt, tries: 404 if tries <= 3 else None)
    with engine_for(server.url, dialect=dialect) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"


def test_kserve_needs_the_models_metadata(servers: Servers) -> None:
    with pytest.raises(ModelNotFound), engine_for(servers.start().url + "/nothing", dialect="kserve"):
        pass


# ── all of it at once ────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.data())
@settings(max_examples=15)
def test_every_request_ends_once_whatever_servers_do(servers: Servers, data: st.DataObject) -> None:
    faults = st.sampled_from([*FAULTS, 400, 422, (429, {"Retry-After": "0"}), "plain text"])
    plans = data.draw(st.lists(st.lists(faults, max_size=4), min_size=1, max_size=40))
    aborted = data.draw(st.sets(st.integers(0, len(plans) - 1)))

    def behaves(prompt: str, tries: int) -> Any:
        plan = plans[int(prompt)]
        return plan[tries - 1] if tries <= len(plan) else None

    fleet = [servers.start(behaves) for _ in range(data.draw(st.integers(1, 2)))]
    with engine_for(*(server.url for server in fleet), max_num_seqs=8, retries=10) as engine:
        for index in range(len(plans)):
            engine.add(asked(str(index)))
            if index in aborted:
                engine.abort(str(index))
        found = drained(engine)
    assert set(found) == {str(index) for index in range(len(plans))}
    for key, each in found.items():
        if isinstance(each, Output) and each.finish_reason is not FinishReason.ABORT:
            assert each.text == text_for(key)
        elif isinstance(each, Failure):
            assert each.error.kind == "InvalidRequest"
    for server in fleet:
        servers.stop(server)


# ── under the manager ────────────────────────────────────────────────────────────────────────────────────────────────


def test_requests_of_an_inference_process_that_is_killed_are_sent_again(machine: Machine, servers: Servers) -> None:
    held = {str(index) for index in range(8)}
    server = servers.start(lambda prompt, tries: "wait" if prompt in held and tries == 1 else None)
    client = machine.open(
        command=MANAGER_COMMAND, model="m", backend="endpoint", backend_options={"urls": server.url}, max_num_seqs=16
    )
    futures = {str(index): client.submit(str(index), SamplingParams(), request_id=str(index)) for index in range(40)}
    eventually(lambda: server.in_flight == 8 and len(server.seen) == 40, "requests that are held")
    kill(machine.engine_pid())
    found = {name: future.result(PATIENCE) for name, future in futures.items()}
    assert {name: output.text for name, output in found.items()} == {name: text_for(name) for name in futures}
    assert all((output.num_generated, output.prompt_tokens) == (5, 3) for output in found.values())
    assert {prompt for prompt, tries in server.tries.items() if tries > 1} == held
    assert machine.model_status().restarts == 1


def test_a_key_that_is_withdrawn_in_mid_job_fails_the_job_at_once(machine: Machine, servers: Servers) -> None:
    server = servers.start(lambda prompt, _tries: 401 if prompt == "9" else None)
    client = machine.open(command=MANAGER_COMMAND, model="m", backend="endpoint", backend_options={"urls": server.url})
    futures = [client.submit(str(index), SamplingParams(), request_id=str(index)) for index in range(10)]
    with pytest.raises(ModelLoadFailed, match=r"answered 401: no 9; it refuses a request without a key"):
        futures[9].result(PATIENCE)
    eventually(lambda: not machine.model_status().pids, "the end of the engine")

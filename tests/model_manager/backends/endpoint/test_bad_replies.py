"""A reply that is no answer fails one row, and the others go on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from millrace.model_manager.backends.endpoint import circuit
from millrace.model_manager.backends.endpoint.judging import Reply, judge
from millrace.model_manager.wire.endpoint_options import EndpointOptions
from millrace.model_manager.wire.errors import ModelLoadFailed
from millrace.model_manager.wire.request import Failure, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import (
    answers,
    drained,
    engine_for,
    no_long_waits,
    refusal,
    servers,
    text,
)
from tests.model_manager.backends.stand_in_server import Servers

__all__ = ["no_long_waits", "servers"]

DEEP = b'{"a":' * 50_000
GARBAGE = [
    {"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": 10**30}]},
    {"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": -1}]},
    (200, DEEP),
    (200, b"[" * 50_000 + b"]" * 50_000),
    (500, DEEP),
]


@pytest.mark.parametrize("count", [10**7, 10**18, 10**24, -1])
def test_a_count_that_cannot_be_is_left_out_and_told_once(
    servers: Servers, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
    server = servers.start(lambda _prompt, _tries: {"usage": usage})
    with engine_for(server.url) as engine, caplog.at_level(logging.WARNING):
        found = answers(engine, ["a", "b"])
        stats = engine.stats()
    for output in found.values():
        assert isinstance(output, Output)
        assert (output.num_tokens, output.prompt_tokens, output.cached_tokens) == (0, 0, 0)
    assert (stats.prompt_tokens, stats.generated_tokens) == (0, 0)
    told = [message for message in caplog.messages if "counts tokens that cannot be" in message]
    assert len(told) <= 1  # a number that is no integer of 64 bits is garbled, and counted as missing
    assert told or count == 10**24
    assert all(message.startswith(server.url) for message in told)


@pytest.mark.parametrize("counts", [(131_000, 64), (3, 190)])
def test_a_count_that_can_be_is_kept(servers: Servers, counts: tuple[int, int]) -> None:
    usage = {"prompt_tokens": counts[0], "completion_tokens": counts[1]}
    with engine_for(servers.start(lambda _prompt, _tries: {"usage": usage}).url) as engine:
        (output,) = answers(engine, ["a"]).values()
    assert isinstance(output, Output)
    assert (output.prompt_tokens, output.num_tokens) == counts


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

"""The back end `endpoint` against real HTTP servers: every request ends in one answer, whatever the servers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.backends.endpoint import over_http
from millrace.model_manager.backends.endpoint.engine import load
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import (
    ConfigError,
    InvalidRequest,
    ModelError,
    ModelLoadFailed,
    ModelNotFound,
)
from millrace.model_manager.wire.request import Failure, FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import (
    answers,
    asked,
    drained,
    engine_for,
    no_long_waits,
    refusal,
    servers,
    text,
)
from tests.model_manager.backends.stand_in_server import Servers, text_for

__all__ = ["no_long_waits", "servers"]

KEY = "sk-the-secret-key"
DIALECTS = ("openai", "openai-completions", "tgi", "triton", "kserve", "llama-completion")
FAULTS = ["page", "broken", "empty", "binary", "hang up", "hang up in the body", 408, 409, 424, 425, 500, 502, 503, 599]


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


def test_a_server_that_was_still_loading_at_the_last_try_is_asked_once_more(servers: Servers) -> None:
    """It is out for this row for good, too: then the row fails after that."""
    starting = {1: "hang up", 2: 503}
    server = servers.start(lambda prompt, tries: 503 if prompt == "out" else starting.get(tries))
    with engine_for(server.url, retries=1) as engine:
        found = answers(engine, ["a", "out"])
    assert text(found["a"]) == "<a>"
    assert refusal(found["out"])[1].startswith("no answer in 3 tries")
    assert server.tries == {"a": 3, "out": 3}


@pytest.mark.parametrize("fault", ["empty", "hang up", 500])
def test_a_row_at_which_a_living_server_fails_each_time_fails_alone(servers: Servers, fault: Any) -> None:
    server = servers.start(lambda prompt, _tries: fault if prompt == "poison" else None)
    with engine_for(server.url, retries=2) as engine:
        found = answers(engine, ["poison", *map(str, range(20))])
    assert {text(each) for key, each in found.items() if key != "poison"} == {text_for(str(n)) for n in range(20)}
    kind, message = refusal(found["poison"])
    assert (kind, message.partition(";")[0]) == ("ServerFailed", "no answer in 3 tries")
    assert server.tries["poison"] == 3


def test_an_answer_without_end_is_not_read(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_for(servers.start().url, retries=0) as engine:
        monkeypatch.setattr(over_http, "MOST_BYTES", 120)
        kind, message = refusal(answers(engine, ["a"])["a"])
    assert (kind, "more than 120 bytes" in message) == ("ServerFailed", True)


def test_a_server_that_does_not_answer_in_time_fails_the_row_alone(servers: Servers) -> None:
    server = servers.start(lambda prompt, _tries: "wait" if prompt == "slow" else None)
    with engine_for(server.url, timeout=0.2, retries=1) as engine:
        for _ in range(20):  # on a busy machine the other answer may come too late as well
            found = answers(engine, ["slow", "fast"])
            assert "no answer in time" in refusal(found["slow"])[1]
            if isinstance(found["fast"], Output):
                break
    assert text(found["fast"]) == "<fast>"


def test_a_deadline_and_an_abort_end_a_request_that_its_server_holds(servers: Servers) -> None:
    server = servers.start(lambda _prompt, _tries: "wait")
    with engine_for(server.url) as engine:
        engine.add(asked("unwanted"))
        while not server.in_flight:
            engine.step()
        engine.abort("unwanted")
        engine.add(asked("late", deadline=0.1))
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
        ({"urls": "http://a", "dialect": "soap"}, "takes one of kserve, llama-completion, mii"),
        ({"urls": "http://a", "timeout": 0}, "timeout=0: takes a finite number above 0"),
        ({"urls": "http://a", "key_env": "NO_SUCH_VARIABLE"}, "key_env='NO_SUCH_VARIABLE'"),
        ({"urls": "http://a", "extra_parameters": "topk"}, "did you mean top_k?"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(ModelConfig(model="m", backend="endpoint", backend_options=options), Path())
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


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

"""TGI's routes, asked by huggingface_hub's own client at the base address."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from millrace.model_manager.wire.errors import InvalidRequest
from millrace.serving.tgi.generate_body import read_body, sampling
from tests.serving.servers import MODEL, Server

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def client(server: Server) -> InferenceClient:
    return InferenceClient(model=server.url, token="none")


def completed(server: Server, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 8, "prompt": PROMPT, **more}
    return server.client().completions.create(**asked).choices[0]


def test_a_prompt_is_completed(server: Server, client: InferenceClient) -> None:
    same = completed(server).text
    assert client.text_generation(PROMPT, max_new_tokens=8) == same
    assert client.text_generation(PROMPT, max_new_tokens=8, return_full_text=True) == PROMPT + same
    assert "".join(client.text_generation(PROMPT, max_new_tokens=8, stream=True)) == same


def test_details_tell_the_tokens(server: Server, client: InferenceClient) -> None:
    same = completed(server, logprobs=0)
    found = client.text_generation(
        PROMPT, max_new_tokens=8, details=True, decoder_input_details=True, top_n_tokens=2, seed=3
    )
    assert found.generated_text == same.text
    details = found.details
    assert details is not None
    assert (details.finish_reason, details.generated_tokens, details.seed) == ("length", 8, 3)
    assert [each.logprob for each in details.tokens] == same.logprobs.token_logprobs
    assert [each.text for each in details.tokens] == same.logprobs.tokens
    assert details.top_tokens is not None
    assert all(len(each) == 2 for each in details.top_tokens)
    prompt = server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    assert [each.id for each in details.prefill] == prompt
    assert details.prefill[0].logprob is None


def test_a_stream_ends_with_the_whole_answer(server: Server, client: InferenceClient) -> None:
    same = completed(server)
    events = list(client.text_generation(PROMPT, max_new_tokens=8, stream=True, details=True))
    assert [event.index for event in events] == list(range(1, 9))
    assert "".join(event.token.text for event in events) == same.text
    assert all(event.generated_text is None for event in events[:-1])
    assert events[-1].generated_text == same.text
    details = events[-1].details
    assert details is not None
    assert (details.finish_reason, details.generated_tokens) == ("length", 8)
    assert details.input_length == len(server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"])


def test_a_stop_sequence_ends_the_answer_and_is_in_it(server: Server, client: InferenceClient) -> None:
    text = completed(server).text
    stop = text[2:4]
    end = text.index(stop) + len(stop)
    found = client.text_generation(PROMPT, max_new_tokens=8, stop=[stop], details=True)
    assert found.generated_text == text[:end]
    assert found.details is not None
    assert found.details.finish_reason == "stop_sequence"


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 1.0}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.5}, 0.5),
        ({"top_k": 5}, 1.0),
        ({"top_p": 0.5}, 1.0),
        ({"typical_p": 0.5}, 1.0),
        ({"repetition_penalty": 1.2, "seed": 3}, 0.0),
    ],
)
def test_parameters_of_sampling_imply_it(given: dict[str, Any], temperature: float) -> None:
    body = read_body({"inputs": "a", "parameters": given}, is_stream=False)
    params = sampling(body.parameters, is_stream=False)
    assert params.temperature == temperature
    for name in given.keys() - {"temperature", "do_sample"}:
        assert getattr(params, name) == given[name]


def test_the_best_of_several_is_the_likeliest(client: InferenceClient) -> None:
    found = client.text_generation(PROMPT, max_new_tokens=6, do_sample=True, seed=1, best_of=3, details=True)
    assert found.details is not None
    others = found.details.best_of_sequences
    assert others is not None
    assert len(others) == 2
    answers: list[Any] = [found.details, *others]
    best, *rest = (sum(token.logprob for token in each.tokens) for each in answers)
    assert best >= max(rest)


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "regex", "value": "[ab]{3}"},
        {"type": "json", "value": {"type": "string", "pattern": "^[ab]{3}$"}},
        {"type": "json_schema", "value": {"name": "x", "schema": {"type": "string", "pattern": "^[ab]{3}$"}}},
    ],
)
def test_a_grammar_holds(client: InferenceClient, grammar: Any) -> None:
    text = client.text_generation(PROMPT, max_new_tokens=20, grammar=grammar)
    assert set(text.strip('"')) <= set("ab")
    assert len(text.strip('"')) == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"watermark": True}, "watermark: is not supported"),
        ({"temperature": 0.0}, "temperature: must be above 0"),
        ({"top_p": 7.0}, "top_p=7"),
        ({"best_of": 2}, "best_of: takes 1"),
        ({"max_new_tokens": 0}, "max_new_tokens: takes 1 or more"),
        ({"truncate": 0}, "truncate: takes 1 or more"),
        ({"do_sample": True, "best_of": 100}, "error: best_of=100: takes 1 to 64"),
        ({"top_n_tokens": 50}, "error: top_n_tokens=50: takes 0 to 20"),
        ({"max_new_tokens": 2**63}, "error: max_new_tokens=9223372036854775808: takes 1"),
        ({"grammar": {"type": "regex", "value": "("}}, "error: grammar: "),
        ({"grammar": {"type": "json", "value": {"type": "nothing"}}}, "error: grammar: "),
    ],
)
def test_what_is_wrong_is_told_in_tgis_form(server: Server, client: InferenceClient, given: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        client.text_generation(PROMPT, **given)
    answer = server.post("/generate", {"inputs": PROMPT, "parameters": given})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")


@pytest.mark.parametrize("value", ["{bad", "[" * 100_000, ""])
def test_a_grammar_that_is_no_json_is_refused(value: str) -> None:
    body = read_body({"inputs": "a", "parameters": {"grammar": {"type": "json", "value": value}}}, is_stream=False)
    with pytest.raises(InvalidRequest, match="grammar: its value is not JSON"):
        sampling(body.parameters, is_stream=False)


def test_fields_without_effect_are_named(server: Server) -> None:
    body: dict[str, Any] = {"inputs": PROMPT, "parameters": {"max_new_tokens": 1}, "stream": False}
    for path in ("/generate", "/generate_stream", "/"):
        assert "x-millrace-ignored" not in server.post(path, body).headers
        answer = server.post(path, body | {"best": 1, "a,b": 2})
        assert (answer.status_code, answer.headers["x-millrace-ignored"]) == (200, "a?b, best")


def test_a_prompt_that_is_too_long_is_told_or_cut(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="positions"):
        client.text_generation("word " * 9000)
    found = client.text_generation(
        "word " * 9000, truncate=5, max_new_tokens=1, details=True, decoder_input_details=True
    )
    assert found.details is not None
    assert len(found.details.prefill) == 5


def test_the_last_tokens_of_a_text_are_the_same_however_long_it_is(server: Server) -> None:
    def last_tokens(text: str) -> list[int]:
        asked = {"truncate": 50, "max_new_tokens": 1, "details": True, "decoder_input_details": True}
        answer = server.post("/generate", {"inputs": text, "parameters": asked}).json()
        return [each["id"] for each in answer["details"]["prefill"]]

    tokens = last_tokens("some words " * 100)
    assert len(tokens) == 50
    assert last_tokens("some words " * 2**21) == tokens


def test_the_paths_of_its_own_clients_are_there(server: Server) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}
    (listed,) = server.post("/", body).json()
    assert server.post("/generate", body).json() == listed
    events = server.post("/generate_stream", body).text
    assert events.count("data: ") == 2
    assert "[DONE]" not in events
    info = httpx.get(f"{server.url}/info").json()
    assert info["model_id"] == MODEL
    assert info["max_total_tokens"] > info["max_input_tokens"] > 0

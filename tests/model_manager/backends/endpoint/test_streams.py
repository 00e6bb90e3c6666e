"""Answers that come as streams with token ids: a try that breaks off is gone on with, after the tokens that came."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.backends.endpoint import engine as engine_module
from millrace.model_manager.backends.endpoint.dialects import Garbled
from millrace.model_manager.backends.endpoint.llama_completion import LlamaCompletion
from millrace.model_manager.backends.endpoint.openai import OpenAI
from millrace.model_manager.backends.endpoint.streams import AnswerStream, Kept, whole
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.engine import counters
from millrace.model_manager.wire.endpoint_options import EndpointOptions
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import (
    answers,
    asked,
    drained,
    engine_for,
    no_long_waits,
    servers,
    text,
)
from tests.model_manager.backends.stand_in_server import Servers, text_for
from tests.model_manager.manager.machine import PATIENCE, Machine, kill, machine
from tests.waiting import eventually

__all__ = ["machine", "no_long_waits", "servers"]

VLLM = "return_token_ids,min_tokens,constraint"
OPTIONS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"dialect": "openai-completions", "extra_parameters": VLLM},
    "/v1/chat/completions": {"dialect": "openai", "extra_parameters": VLLM, "max_tokens_name": "max_completion_tokens"},
    "/completion": {"dialect": "llama-completion"},
}
"""By the route of a first try."""
RESTS = {"/v1/chat/completions": "/v1/completions"}
PROMPT = "a row é"
KEPT = "<a r"


@pytest.mark.parametrize("route", OPTIONS)
def test_a_try_that_breaks_off_is_gone_on_with_after_its_tokens(servers: Servers, route: str) -> None:
    server = servers.start(lambda _prompt, _tries: ("pieces", 5))
    servers.set(server)
    with engine_for(server.url, **OPTIONS[route]) as engine:
        engine.add(asked(PROMPT, max_tokens=100))
        (output,) = drained(engine).values()
    assert text(output) == text_for(PROMPT)
    assert isinstance(output, Output)
    assert (output.prompt_tokens, output.num_generated) == (len(PROMPT), len(text_for(PROMPT)) + 1)
    assert server.paths == [route, RESTS.get(route, route)]
    rest = server.seen[1]
    assert rest["prompt"][-len(KEPT) :] == [ord(each) for each in KEPT]  # the fifth may have been the last
    assert {rest.get("max_tokens"), rest.get("n_predict")} == {None, 100 - len(KEPT)}
    assert "max_completion_tokens" not in rest


def test_steps_count_tokens_while_they_come(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are in another thread than the tokens' counting; here the threads take turns as often as they can."""
    monkeypatch.setattr(engine_module, "_WAIT", 0.0)
    monkeypatch.setattr(counters, "_SLICE", 0.0)
    server = servers.start(lambda _prompt, _tries: ("pieces", 1000))
    servers.set(server)
    prompts = [f"{index} {'w' * 800}" for index in range(16)]
    with often_switched(), engine_for(server.url, **OPTIONS["/completion"]) as engine:
        found = answers(engine, prompts, max_tokens=1000)
        counted = engine.stats().generated_tokens
    assert {prompt: text(output) for prompt, output in found.items()} == {each: text_for(each) for each in prompts}
    assert counted == sum(output.num_generated for output in found.values() if isinstance(output, Output))


@contextmanager
def often_switched() -> Iterator[None]:
    """The interpreter may let another thread run after any of its instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 1.0},
        {"temperature": 1.0, "seed": 3},
        {"constraint": {"choice": ["a"]}},
        {"stop": ("x",)},
    ],
)
def test_an_answer_whose_rest_would_be_another_one_begins_anew(servers: Servers, params: dict[str, Any]) -> None:
    server = servers.start(lambda _prompt, tries: "hang up" if tries == 1 else None)
    with engine_for(server.url, **OPTIONS["/v1/completions"]) as engine:
        engine.add(Request("a", [], SamplingParams.parse(params), text="a"))
        (output,) = drained(engine).values()
    assert text(output) == "<a>"
    assert not any("stream" in each for each in server.seen)


@pytest.mark.parametrize("route", OPTIONS)
def test_an_inference_process_that_is_killed_loses_no_token_that_came(
    machine: Machine, servers: Servers, route: str
) -> None:
    server = servers.start(lambda _prompt, _tries: ("pieces", 5))
    options = {"urls": server.url, **OPTIONS[route]}
    client = machine.open(command=MANAGER_COMMAND, model="m", backend="endpoint", backend_options=options)
    prompts = [f"{PROMPT} {index}" for index in range(8)]
    futures = {each: client.submit(each, SamplingParams(max_tokens=100), request_id=each) for each in prompts}
    kept = len(prompts) * len(KEPT)
    eventually(lambda: machine.model_status().stats.generated_tokens == kept, "the tokens of answers that are held")
    kill(machine.engine_pid())
    found = {name: future.result(PATIENCE) for name, future in futures.items()}
    assert {name: output.text for name, output in found.items()} == {name: text_for(name) for name in prompts}
    for name, output in found.items():
        assert output.recomputed_tokens == len(name) * (route != "/completion") + len(KEPT)
        assert output.num_generated == len(text_for(name)) + 1


def test_a_request_that_ends_early_has_what_came(servers: Servers) -> None:
    server = servers.start(lambda _prompt, _tries: ("pieces", 5))
    with engine_for(server.url, **OPTIONS["/completion"]) as engine:
        engine.add(asked(PROMPT, max_tokens=100))
        while engine.stats().generated_tokens < len(KEPT):
            engine.step()
        engine.abort(PROMPT)
        (output,) = drained(engine).values()
    assert isinstance(output, Output)
    assert (output.text, output.num_generated, output.finish_reason) == (KEPT, len(KEPT), FinishReason.ABORT)


def vllm_event(text: str, token_ids: list[int] | None, **more: Any) -> bytes:
    """As vLLM's `/v1/completions` streams it."""
    return msgspec.json.encode({"choices": [{"index": 0, "text": text, "token_ids": token_ids, **more}]})


COMPLETIONS = OpenAI("m", EndpointOptions(urls="http://x", extra_parameters=VLLM), chat=False)
GONE_ON = Request("id", [7, 8], SamplingParams(max_tokens=9), text="x", output_token_ids=[1, 2], output_text="ab")


@pytest.mark.parametrize(("ids", "counted"), [([3], 3), (None, 0)])
def test_tokens_that_a_server_does_not_count_are_those_that_came(ids: list[int] | None, counted: int) -> None:
    stream = AnswerStream(GONE_ON, COMPLETIONS, lambda _kept: None)
    stream.take(vllm_event("c", ids, prompt_token_ids=[7, 8, 1, 2]))
    stream.take(vllm_event("", [], finish_reason="stop"))
    answer = whole(stream.answer(), GONE_ON)
    assert (answer.text, answer.num_tokens) == ("abc", counted)


def test_a_server_that_does_not_go_on_from_the_tokens_is_told_of() -> None:
    stream = AnswerStream(GONE_ON, COMPLETIONS, lambda _kept: None)
    with pytest.raises(Garbled, match=r"^it was given 4 tokens to go on from, and began elsewhere$"):
        stream.take(vllm_event("a", [1], prompt_token_ids=[7, 8]))


PIECES = st.lists(
    st.tuples(st.text(st.sampled_from("ab"), max_size=2), st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=9
)
"""Text, how many tokens it has, and whether the server leaves the first of them out (0)."""


@given(PIECES, st.integers(0, 9), st.integers(1, 30))
def test_what_is_kept_and_the_rest_are_the_whole(made: list[tuple[str, int, int]], most: int, budget: int) -> None:
    events, count = [], 0
    for words, tokens, luck in made:
        ids = list(range(count, count + tokens))
        count += tokens
        fields = {"content": words, "tokens": ids[luck == 0 :], "tokens_predicted": count}
        events.append(msgspec.json.encode(fields))
    told: list[Kept] = []
    request = Request("id", [], SamplingParams(max_tokens=budget), text="x")
    stream = AnswerStream(request, LlamaCompletion(), told.append)
    for event in events[:most]:
        stream.take(event)
    with pytest.raises(Garbled):
        stream.answer()
    rest = stream.rest()
    assert rest.output_token_ids == [each for kept in told for each in kept.token_ids]
    assert rest.output_token_ids == list(range(len(rest.output_token_ids)))
    assert len(rest.output_token_ids) < budget
    covered = next(
        number for number in range(len(made)) if sum(each[1] for each in made[:number]) == len(rest.output_token_ids)
    )
    assert rest.output_text == "".join(each[0] for each in made[:covered])
    assert covered < max(1, most), "the last piece may have ended the answer"
    if covered:
        assert made[covered - 1][0], "text may be held back"
    second = AnswerStream(rest, LlamaCompletion(), lambda _kept: None)
    for words, *_ in made[covered:]:
        second.take(msgspec.json.encode({"content": words, "tokens": None}))
    second.take(b'{"content": "", "stop": true, "stop_type": "eos"}')
    assert whole(second.answer(), rest).text == "".join(each[0] for each in made)


@given(st.text(st.sampled_from("ab é漢🙂"), min_size=1), st.lists(st.integers(1, 5), min_size=1), st.integers(0, 30))
def test_tokens_are_kept_up_to_whole_characters(words: str, sizes: list[int], most: int) -> None:
    """A token is a byte, and a piece has the characters that its bytes end."""
    data, decoder = words.encode(), codecs.getincrementaldecoder("utf-8")()
    starts = [0, *accumulate(sizes * len(data))]
    pieces = [data[start:end] for start, end in pairwise(starts) if start < len(data)]
    told: list[Kept] = []
    request = Request("id", [], SamplingParams(max_tokens=1000), text="x")
    stream = AnswerStream(request, COMPLETIONS, told.append)
    for piece in pieces[:most]:
        stream.take(vllm_event(decoder.decode(piece), list(piece), prompt_token_ids=[7]))
    rest = stream.rest()
    assert bytes(rest.output_token_ids).decode() == rest.output_text
    assert words.startswith(rest.output_text)
    if words.isascii() and most > 1:
        assert rest.output_token_ids == list(b"".join(pieces[: min(most, len(pieces)) - 1])), "all but the last piece"

"""`/v1/completions`, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from tests.serving.servers import MODEL, Server

GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12}
PROMPT = "The capital of Mexico is"


def direct(server: Server, prompt: Any, **params: Any) -> Any:
    """The answer of a client on the same machine, which shares the engine."""
    config = ModelConfig(model=MODEL, backend="fake")
    with EngineClient.open(config, runtime=server.runtime, chat=False) as client:
        return client.submit(prompt, SamplingParams(**params), request_id="direct").result(60)


def test_the_answer_is_the_engines_own(server: Server) -> None:
    answer = server.client().completions.create(prompt=PROMPT, **GREEDY)
    output = direct(server, PROMPT, max_tokens=12)
    assert answer.choices[0].text == output.text
    assert answer.choices[0].finish_reason == output.finish_reason
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (output.prompt_tokens, 12)
    assert (answer.object, answer.model) == ("text_completion", MODEL)


def test_a_stream_joined_is_the_whole(server: Server) -> None:
    whole = server.client().completions.create(prompt=PROMPT, **GREEDY)
    parts = list(
        server.client().completions.create(prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    assert "".join(part.choices[0].text for part in parts[:-1]) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts[:-1]][-1] == "length"
    assert parts[-1].choices == []
    assert parts[-1].usage == whole.usage


def test_prompts_in_each_form_are_answered_in_order(server: Server) -> None:
    tokens = server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    client = server.client()
    one = client.completions.create(prompt=PROMPT, **GREEDY).choices[0].text
    other = client.completions.create(prompt="Else", **GREEDY).choices[0].text
    assert client.completions.create(prompt=tokens, **GREEDY).choices[0].text == one
    listed = client.completions.create(prompt=[PROMPT, "Else"], **GREEDY)
    assert [(each.index, each.text) for each in listed.choices] == [(0, one), (1, other)]
    assert [each.text for each in client.completions.create(prompt=[tokens, tokens], **GREEDY).choices] == [one, one]


def test_several_answers_to_several_prompts_have_numbers_of_their_own(server: Server) -> None:
    asked: Any = {**GREEDY, "temperature": 1, "seed": 1, "n": 2, "best_of": 2}
    whole = server.client().completions.create(prompt=["a", "b"], **asked)
    assert [each.index for each in whole.choices] == [0, 1, 2, 3]
    texts = [""] * 4
    for part in server.client().completions.create(prompt=["a", "b"], stream=True, **asked):
        for each in part.choices:
            texts[each.index] += each.text
    assert texts == [each.text for each in whole.choices]


def test_log_probabilities_come_whole_and_in_parts(server: Server) -> None:
    whole = server.client().completions.create(prompt=PROMPT, logprobs=2, **GREEDY).choices[0].logprobs
    assert whole is not None
    assert whole.tokens is not None
    assert len(whole.tokens) == 12
    parts = server.client().completions.create(prompt=PROMPT, logprobs=2, stream=True, **GREEDY)
    found = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs]
    assert [token for each in found for token in each.tokens or []] == whole.tokens
    assert [offset for each in found for offset in each.text_offset or []] == whole.text_offset


def test_the_prompt_is_echoed(server: Server) -> None:
    plain = server.client().completions.create(prompt=PROMPT, **GREEDY).choices[0].text
    assert server.client().completions.create(prompt=PROMPT, echo=True, **GREEDY).choices[0].text == PROMPT + plain
    parts = server.client().completions.create(prompt=PROMPT, echo=True, stream=True, **GREEDY)
    assert "".join(part.choices[0].text for part in parts) == PROMPT + plain


def test_the_prompt_alone_is_echoed_with_its_log_probabilities(server: Server) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT, "echo": True, "logprobs": 1}
    alone = server.client().completions.create(max_tokens=0, **asked)
    more = server.client().completions.create(max_tokens=1, **asked).choices[0].logprobs
    found = alone.choices[0].logprobs
    assert alone.choices[0].text == PROMPT
    assert alone.choices[0].finish_reason == "length"
    assert alone.usage is not None
    assert alone.usage.completion_tokens == 0
    assert more is not None
    assert found is not None
    assert found.tokens == (more.tokens or [])[:-1]
    assert found.token_logprobs == (more.token_logprobs or [])[:-1]


def test_offsets_say_where_each_token_is_in_the_text(server: Server) -> None:
    asked: Any = {"model": MODEL, "temperature": 0, "prompt": PROMPT, "max_tokens": 8, "logprobs": 0}
    for extra in ({}, {"echo": True}):
        answer = server.client().completions.create(**asked, **extra).choices[0]
        found = answer.logprobs
        assert found is not None
        pairs = [*zip(found.text_offset or [], found.tokens or [], strict=True)]
        assert len(pairs) >= 8
        assert [answer.text[at : at + len(token)] for at, token in pairs] == [token for _, token in pairs]


def test_a_token_is_among_its_own_alternatives(server: Server) -> None:
    found = server.client().completions.create(prompt=PROMPT, logprobs=0, **GREEDY).choices[0].logprobs
    assert found is not None
    pairs = zip(found.tokens or [], found.token_logprobs or [], strict=True)
    assert found.top_logprobs == [{token: logprob} for token, logprob in pairs]


def test_each_part_of_a_stream_has_the_usage_so_far_where_it_is_asked_for(server: Server) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    parts = list(server.client().completions.create(prompt=PROMPT, stream=True, stream_options=options, **GREEDY))
    used = [part.usage for part in parts]
    assert all(each is not None and each.prompt_tokens == used[-1].prompt_tokens for each in used if used[-1])
    counts = [each.completion_tokens for each in used if each]
    assert counts == sorted(counts)
    assert counts[-1] == 12


def test_null_is_as_if_absent_in_the_options_of_a_stream(server: Server) -> None:
    options: Any = {"include_usage": None, "continuous_usage_stats": None, "include_obfuscation": None}
    parts = list(server.client().completions.create(prompt=PROMPT, stream=True, stream_options=options, **GREEDY))
    assert parts[-1].choices[0].finish_reason == "length"
    assert not any(part.usage for part in parts)


@pytest.mark.parametrize(
    "extra",
    [
        {"guided_regex": "[ab]{3}"},
        {"structured_outputs": {"regex": "[ab]{3}"}},
        {"constraint": {"regex": "[ab]{3}"}},
        {"guided_grammar": "start: /[ab]{3}/"},
        {"guided_choice": ["aba", "bab"]},
        {"guided_json": {"type": "string", "pattern": "^[ab]{3}$"}},
    ],
)
def test_constraints_in_each_form_hold(server: Server, extra: dict[str, Any]) -> None:
    text = server.client().completions.create(prompt="p", extra_body=extra, **GREEDY).choices[0].text
    assert set(text.strip('"')) <= set("ab")
    assert len(text.strip('"')) == 3


def test_the_first_of_several_stop_strings_ends_an_answer_whole_and_streamed(server: Server) -> None:
    text = server.client().completions.create(prompt=PROMPT, **GREEDY).choices[0].text
    early, late = text[len(text) // 3 :][:3], text[2 * len(text) // 3 :][:3]
    expected = text[: min(text.index(early), text.index(late))]
    asked: Any = {"prompt": PROMPT, "stop": [late, early], **GREEDY}
    answer = server.client().completions.create(**asked).choices[0]
    assert (answer.text, answer.finish_reason) == (expected, "stop")
    parts = [part.choices[0] for part in server.client().completions.create(stream=True, **asked)]
    assert ("".join(part.text for part in parts), parts[-1].finish_reason) == (expected, "stop")


def test_parameters_of_vllm_are_taken(server: Server) -> None:
    extra: dict[str, Any] = {
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "min_tokens": 2,
        "ignore_eos": True,
        "priority": 5,
    }
    extra |= {"stop_token_ids": [1], "include_stop_str_in_output": True, "skip_special_tokens": True}
    raw = server.client().completions.with_raw_response.create(prompt="p", extra_body=extra, **GREEDY)
    assert "x-millrace-ignored" not in raw.headers


def test_what_is_ignored_is_named(server: Server) -> None:
    extra = {"some_new_field": 1, "tränen\n": 2}
    raw = server.client().completions.with_raw_response.create(prompt="p", user="u", extra_body=extra, **GREEDY)
    assert raw.headers["x-millrace-ignored"] == "some_new_field, tr?nen?"


def test_the_asynchronous_client_is_answered_at_once_for_many(server: Server) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(
                *(client.completions.create(prompt=f"number {number}", **GREEDY) for number in range(40))
            )
            stream = await client.completions.create(prompt="number 7", stream=True, **GREEDY)
            streamed = "".join([part.choices[0].text async for part in stream])
            return [*(each.choices[0].text for each in answers), streamed]

    texts = asyncio.run(ask())
    assert len(set(texts[:40])) > 30
    assert texts[40] == texts[7]


def test_tokens_become_text_again(server: Server) -> None:
    found = server.post("/tokenize", {"prompt": PROMPT, "add_special_tokens": False}).json()
    assert found["count"] == len(found["tokens"])
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": PROMPT}


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vectors_are_those_of_the_engine(server: Server, encoding: Any) -> None:
    answer = server.client().embeddings.create(model=MODEL, input=["a", "b c"], encoding_format=encoding)
    plain = server.client().embeddings.create(model=MODEL, input=["a", "b c"])
    assert [each.index for each in answer.data] == [0, 1]
    if encoding == "float":
        assert [each.embedding for each in answer.data] == [each.embedding for each in plain.data]
    else:
        assert isinstance(answer.data[0].embedding, str)
    assert answer.usage.prompt_tokens > 2

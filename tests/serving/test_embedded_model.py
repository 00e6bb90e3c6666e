"""The embedded model over HTTP: what it answers is what `Generate` and a client answer."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConstraintNotMet
from millrace.model_manager.wire.sampling import SamplingParams
from tests.processes import stopped
from tests.serving.servers import MODEL, Server, running

TRIES = 20
QUESTION = "What is the capital of Mexico?"
AMBIGUOUS = "start: x\nx: x x | x x x | C\nC: /./"
"""Any line, read in so many ways that each token takes more time than the last."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runtime: Path = tmp_path_factory.mktemp("real") / "rt"
    try:
        with running(runtime) as server:
            yield server.wait_until_ready()
    finally:
        stop_models(runtime)


def test_a_question_is_answered_as_by_a_client_whole_and_streamed(real: Server) -> None:
    said: Any = [{"role": "user", "content": QUESTION}]
    asked: Any = {"model": MODEL, "messages": said, "temperature": 0, "max_tokens": 30}
    with EngineClient.open(ModelConfig(), runtime=real.runtime) as client:
        output = client.submit(QUESTION, SamplingParams(max_tokens=30), request_id="a").result(120)
    answer = real.client().chat.completions.create(**asked).choices[0]
    assert "Mexico City" in output.text
    assert (answer.message.content, answer.finish_reason) == (output.text, output.finish_reason)
    parts = list(real.client().chat.completions.create(stream=True, **asked))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == output.text
    assert parts[-1].choices[0].finish_reason == output.finish_reason


def test_an_answer_is_any_object_of_json(real: Server) -> None:
    said: Any = [{"role": "user", "content": QUESTION}]
    asked: Any = {"response_format": {"type": "json_object"}, "max_tokens": 30, "temperature": 0, "model": MODEL}
    answer = real.client().chat.completions.create(messages=said, **asked)
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_a_bias_of_a_token_chooses_it_or_takes_it_away(real: Server) -> None:
    said: Any = [{"role": "user", "content": QUESTION}]

    def answered(**more: Any) -> str | None:
        asked: Any = {"model": MODEL, "messages": said, "temperature": 0, "max_tokens": 1, **more}
        content: str | None = real.client().chat.completions.create(**asked).choices[0].message.content
        return content

    plain = answered()
    first, other = (
        real.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"][0]
        for text in (plain, "Rome")
    )
    wanted = real.post("/detokenize", {"tokens": [other]}).json()["prompt"]
    assert answered(logit_bias={str(other): 100}) == wanted != plain
    assert answered(logit_bias={str(first): -100}) != plain


def joined(parts: list[Any], index: int) -> tuple[str, list[Any], list[Any], list[Any]]:
    """Text, tokens, log-probabilities and offsets of a choice that came in parts."""
    own = [each for part in parts for each in part.choices if each.index == index]
    shown = [each.logprobs for each in own if each.logprobs]
    names = ("tokens", "token_logprobs", "text_offset")
    tokens, logprobs, offsets = ([each for part in shown for each in getattr(part, name)] for name in names)
    return "".join(each.text for each in own), tokens, logprobs, offsets


def test_an_echo_has_all_tokens_of_its_prompt_whole_and_streamed(real: Server) -> None:
    asked: Any = {"model": MODEL, "prompt": "hello", "echo": True, "logprobs": 1, "temperature": 0}
    asked["extra_body"] = {"ignore_eos": True, "min_tokens": 3}
    alone = real.client().completions.create(max_tokens=0, **asked | {"extra_body": {}})
    whole = real.client().completions.create(max_tokens=3, **asked)
    text, tokens, logprobs, offsets = joined([whole], 0)
    assert joined([alone], 0) == ("hello", tokens[:2], logprobs[:2], offsets[:2])
    assert (tokens[:2], offsets[:3], logprobs[0]) == (["hel", "lo"], [0, 3, 5], None)
    assert text.startswith("hello")
    parts = list(real.client().completions.create(max_tokens=3, stream=True, **asked))
    streamed = joined(parts, 0)
    assert (streamed[0], streamed[1], streamed[3]) == (text, tokens, offsets)
    assert streamed[2][0] is None
    assert streamed[2][1:] == pytest.approx(logprobs[1:], abs=1e-4)


def test_each_answer_has_the_tokens_of_its_echoed_prompt(real: Server) -> None:
    prompts = ["hello", "h\u00e9llo \u5929 \U0001f600 \u00e9"]
    asked: Any = {"model": MODEL, "prompt": prompts, "echo": True, "logprobs": 0, "max_tokens": 2, "n": 2, "seed": 1}
    asked["extra_body"] = {"ignore_eos": True}
    whole = real.client().completions.create(**asked)
    parts = list(real.client().completions.create(stream=True, **asked))
    for index, prompt in enumerate(("hello", "hello", prompts[1], prompts[1])):
        text, tokens, _, offsets = joined([whole], index)
        assert joined(parts, index)[:2] == (text, tokens)
        assert joined(parts, index)[3] == offsets
        in_prompt = [token for token, offset in zip(tokens, offsets, strict=True) if offset < len(prompt)]
        assert in_prompt[0] == tokens[0] == ("hel" if prompt == "hello" else "h")
        assert len(tokens) == len(in_prompt) + 2
        assert set(offsets) >= {at for at, letter in enumerate(prompt) if letter in "\u5929\U0001f600"}


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"stop": ["e"]}])
def test_offsets_say_where_each_token_is_whole_and_streamed(real: Server, more: dict[str, Any]) -> None:
    asked: Any = {"model": MODEL, "prompt": QUESTION, "logprobs": 0, "max_tokens": 60, "temperature": 5, "seed": 3}
    asked |= {"n": 3, "extra_body": {"ignore_eos": True}, **more}
    whole = real.client().completions.create(**asked)
    parts = list(real.client().completions.create(stream=True, **asked))
    absent, broken = 0, 0
    for index in range(3):
        text, tokens, _, offsets = joined([whole], index)
        streamed = joined(parts, index)
        assert (streamed[0], streamed[1], streamed[3]) == (text, tokens, offsets)
        assert offsets == sorted(offsets)
        assert all(0 <= offset <= len(text) for offset in offsets)
        for offset, token in zip(offsets, tokens, strict=True):
            is_part, is_special = "\ufffd" in token, token in ("<s>", "</s>", "<pad>")
            absent, broken = absent + is_special, broken + is_part
            end = offset + len(token)
            assert is_part or is_special or end > len(text) or text[offset:end] == token
    assert "stop" in more or (absent and broken)


def test_several_answers_to_a_conversation_are_streamed_each_with_its_own_text(real: Server) -> None:
    said: Any = [{"role": "user", "content": "Tell a story."}]
    asked: Any = {"model": MODEL, "messages": said, "max_tokens": 9, "temperature": 5, "seed": 1, "n": 2}
    whole = real.client().chat.completions.create(**asked).choices
    texts, roles, reasons = ["", ""], [0, 0], ["", ""]
    for part in real.client().chat.completions.create(stream=True, **asked):
        for each in part.choices:
            texts[each.index] += each.delta.content or ""
            roles[each.index] += each.delta.role == "assistant"
            reasons[each.index] = each.finish_reason or reasons[each.index]
    assert texts == [each.message.content for each in whole]
    assert (roles, reasons) == ([1, 1], [each.finish_reason for each in whole])
    assert texts[0] != texts[1]


@pytest.mark.parametrize("is_called", [False, True])
def test_with_auto_a_stream_is_the_whole_be_it_text_or_a_call(real: Server, is_called: bool) -> None:
    parameters = {"type": "object", "properties": {"town": {"enum": ["Paris"]}}, "required": ["town"]}
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": parameters | {"additionalProperties": False}},
    }
    (brace,) = real.post("/tokenize", {"prompt": "{", "add_special_tokens": False}).json()["tokens"]
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    asked |= {"tools": [tool], "tool_choice": "auto", "logit_bias": {str(brace): 100} if is_called else {}}
    whole = real.client().chat.completions.create(**asked).choices[0]
    parts = [part.choices[0] for part in real.client().chat.completions.create(stream=True, **asked)]
    calls = [call.function for part in parts for call in part.delta.tool_calls or []]
    called = [call.function for call in whole.message.tool_calls or []]
    assert [(each.name, json.loads(each.arguments)) for each in called] == [("weather", {"town": "Paris"})] * is_called
    assert [each.name for each in calls if each.name] == [each.name for each in called]
    assert "".join(each.arguments or "" for each in calls) == "".join(each.arguments for each in called)
    assert "".join(part.delta.content or "" for part in parts) == (whole.message.content or "")
    assert parts[-1].finish_reason == whole.finish_reason == ("tool_calls" if is_called else "stop")


def test_two_requests_at_once_are_both_answered_from_one_engine(real: Server) -> None:
    vectors = real.client().embeddings.create(model=MODEL, input=[QUESTION, QUESTION]).data
    assert vectors[0].embedding == pytest.approx(vectors[1].embedding, abs=1e-4)
    assert len(real.engine_pids()) == 1


def test_several_answers_of_an_ambiguous_grammar_are_those_of_a_plain_one(real: Server) -> None:
    asked: Any = {"model": MODEL, "prompt": "a", "max_tokens": 40, "temperature": 1, "seed": 1, "n": 3}
    slow, quick = (
        real.client().completions.create(**asked, extra_body=constraint | {"ignore_eos": True})
        for constraint in ({"guided_grammar": AMBIGUOUS}, {"guided_regex": ".+"})
    )
    assert len({choice.text for choice in slow.choices}) == 3
    assert slow.choices == quick.choices


def test_an_ambiguous_grammar_ends_as_it_would_though_its_engine_is_killed_meanwhile(real: Server) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1, seed=1)
    slow, quick = (
        msgspec.structs.replace(params, constraint=constraint)
        for constraint in (Constraint(grammar=AMBIGUOUS), Constraint(regex=".+"))
    )
    shorter = msgspec.structs.replace(params, max_tokens=40)
    with EngineClient.open(ModelConfig(), runtime=real.runtime) as client:
        alone = client.submit("a", quick, request_id="quick").result(120)

        def is_killed_meanwhile(turn: int) -> bool:
            others = [client.submit(QUESTION, params, request_id=f"other {each} {turn}") for each in range(4)]
            hostile = client.submit("a", slow, request_id=f"killed {turn}")
            before = client.submit(QUESTION, shorter, request_id=f"before {turn}").result(120)
            with stopped(engine := real.engine_pid()):
                if was_running := not hostile.done():
                    os.kill(engine, signal.SIGKILL)
            assert hostile.result(120).token_ids == alone.token_ids
            assert all(other.result(120).token_ids[:40] == before.token_ids for other in others)
            return was_running

        assert any(map(is_killed_meanwhile, range(TRIES))), "else it was answered before"
    assert real.outstanding() == 0


def test_answers_beside_an_ambiguous_grammar_do_not_wait_for_its_tokens(real: Server) -> None:
    """Its tokens become slow one after another until one takes too many states; steps do not wait for them."""
    slow = SamplingParams(constraint=Constraint(grammar=AMBIGUOUS), ignore_eos=True, max_tokens=400)
    plain, tokens, answered = SamplingParams(max_tokens=1500, ignore_eos=True), list[int](), Future[int]()
    with EngineClient.open(ModelConfig(), runtime=real.runtime) as client:
        client.submit(QUESTION, SamplingParams(max_tokens=1), request_id="first").result(120)  # credits are here then
        hostile = client.submit("a", slow, request_id="slow", may_wait=False)
        hostile.add_done_callback(lambda _: answered.set_result(len(tokens)))  # on the thread that adds to them
        client.submit(
            QUESTION, plain, request_id="plain", may_wait=False, on_delta=lambda delta: tokens.extend(delta.token_ids)
        )
        client.flush_at_once()  # both begin at once
        with pytest.raises(ConstraintNotMet, match="takes too many states") as failed:
            hostile.result(120)
    taken = int(re.findall(r"after (\d+) tokens", str(failed.value))[0])
    assert answered.result(120) > 2 * taken

"""The deltas of an answer are the answer, whatever ends it, and hold nothing that is no part of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.client.deltas import Delta, Deltas, Generated
from millrace.model_manager.client.generation import answer_of
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.engine.scheduling.stopping import Ending, StopRules
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.errors import EngineError
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.request import FinishReason, NewTokens, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings

FOLDER = resolve(EMBEDDED_MODEL)
TOKENIZER = Tokenizer.load(FOLDER)
RULES = StopRules.load(FOLDER, [TOKENIZER._encoder.token_to_id(str(TOKENIZER.eos_token)) or 0])


def logprobs(token_ids: Sequence[int]) -> Logprobs:
    numbers = [-float(token) for token in token_ids]
    return Logprobs(numbers, [False] * len(numbers), [[token] for token in token_ids], [[each] for each in numbers])


def output(token_ids: list[int], ending: Ending, **fields: Any) -> Output:
    return Output(
        "a",
        token_ids,
        ending.reason,
        Timings(0, 0, 0),
        1,
        stop_reason=ending.matched,
        complete=ending.complete,
        **fields,
    )


def stream(
    params: SamplingParams, token_ids: list[int], ending: Ending, chunks: Sequence[int]
) -> tuple[list[Delta], Output]:
    """The deltas of an answer whose tokens came so many at a time, the last ones with the answer; and the answer."""
    request = Request("a", [1], params, stream=True)
    given: list[Delta] = []
    deltas, generated = Deltas(given.append, request, TOKENIZER), Generated()
    asked = params.logprobs is not None
    for count in chunks:
        at = len(generated.token_ids)
        new = token_ids[:-1][at : at + count]
        generated.add(NewTokens("a", at, new, logprobs(new) if asked else None))
        deltas.advance(generated)
    told = output(token_ids, ending, logprobs=logprobs(token_ids) if asked else None)
    answer = answer_of(told, request, TOKENIZER, 0.0)
    deltas.finish(answer)
    return given, answer


def expect_whole(given: Sequence[Delta], answer: Output) -> None:
    assert "".join(delta.text for delta in given) == answer.text
    assert [token for delta in given for token in delta.token_ids] == answer.token_ids
    if answer.logprobs is not None:
        parts = [delta.logprobs for delta in given]
        assert [token for part in parts if part is not None for token in part.tokens] == answer.logprobs.tokens


def ended(params: SamplingParams, token_ids: list[int]) -> tuple[list[int], Ending]:
    """The tokens up to the one that ends the output, as an engine finds it."""
    conditions = RULES.conditions(params, len(token_ids))
    for count, token in enumerate(token_ids, 1):
        if (ending := conditions.after(token, count)) is not None:
            return token_ids[:count], ending
    raise AssertionError("max_tokens ends every output")


@st.composite
def cases(draw: st.DrawFn) -> tuple[SamplingParams, list[int], list[int]]:
    texts = st.sampled_from(["Paris is a city. ", "好é🙂", "a\ufffdb", "e\u0301", "ab" * 5]) | st.text(max_size=8)
    encoded = texts.map(lambda text: TOKENIZER.encode(text, add_special_tokens=False))
    anything = st.lists(st.integers(0, TOKENIZER._encoder.get_vocab_size() - 1), max_size=8)
    parts = draw(st.lists(encoded | anything, min_size=1, max_size=6))
    token_ids = [token for part in parts for token in part] or [1]
    text = TOKENIZER.decode(token_ids) or "a"
    starts = draw(st.lists(st.integers(0, len(text) - 1), max_size=2))
    stops = [text[start : start + draw(st.integers(1, 6))] for start in starts]
    params = SamplingParams(
        max_tokens=len(token_ids),
        min_tokens=draw(st.integers(0, len(token_ids))),
        stop=tuple(stops + draw(st.lists(st.sampled_from(["is", "\ufffd", "aba", " "]), max_size=1))),
        stop_token_ids=tuple(draw(st.lists(st.sampled_from(token_ids), max_size=1))),
        include_stop_str_in_output=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, 1])),
    )
    return params, token_ids, draw(st.lists(st.integers(0, 4), max_size=len(token_ids)))


@given(cases())
@settings(max_examples=600)
def test_all_deltas_together_are_the_answer(case: tuple[SamplingParams, list[int], list[int]]) -> None:
    params, token_ids, chunks = case
    until, ending = ended(params, token_ids)
    given, answer = stream(params, until, ending, chunks)
    expect_whole(given, answer)
    assert all(delta.text or delta.token_ids for delta in given)
    assert not any(delta.text.endswith("\ufffd") for delta in given)


def test_a_text_comes_token_by_token() -> None:
    token_ids = TOKENIZER.encode("The capital of France is Paris.", add_special_tokens=False)
    given, answer = stream(SamplingParams(), token_ids, Ending(FinishReason.LENGTH), [1] * len(token_ids))
    expect_whole(given, answer)
    assert [delta.token_ids for delta in given] == [[token] for token in token_ids]


def test_what_may_become_a_stop_string_waits() -> None:
    token_ids = TOKENIZER.encode("one two, and three", add_special_tokens=False)
    params = SamplingParams(stop=("two, but", "three!"))
    given, answer = stream(params, token_ids, Ending(FinishReason.LENGTH), [1] * len(token_ids))
    expect_whole(given, answer)
    so_far = ["".join(delta.text for delta in given[:count]) for count in range(len(given))]
    assert not any("two".startswith(text[len("one ") :]) and len(text) > len("one ") for text in so_far)


def test_what_a_message_brings_twice_counts_once_and_what_is_behind_a_gap_waits_for_the_answer() -> None:
    generated = Generated()
    for offset, token_ids in ((0, [1, 2]), (1, [2, 3]), (5, [9]), (0, [1])):
        generated.add(NewTokens("a", offset, token_ids))
    assert generated.token_ids == [1, 2, 3]


def test_an_engine_that_gives_text_gives_one_delta() -> None:
    given: list[Delta] = []
    deltas = Deltas(given.append, Request("a", [], SamplingParams()), None)
    deltas.advance(Generated([1, 2]))
    deltas.finish(output([], Ending(FinishReason.STOP), text="hello"))
    assert given == [Delta(0, "hello", [], None)]


def test_a_caller_whose_function_fails_is_called_no_more(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Delta] = []

    def fail(delta: Delta) -> None:
        calls.append(delta)
        raise ValueError("of the caller")

    deltas = Deltas(fail, Request("a", [1], SamplingParams()), None)
    with caplog.at_level(logging.ERROR):
        deltas.finish(output([], Ending(FinishReason.STOP), text="a"))
        deltas.finish(output([], Ending(FinishReason.STOP), text="ab"))
    assert len(calls) == 1
    assert "of the caller" in caplog.text


def test_an_answer_that_differs_from_its_stream_is_an_error() -> None:
    one, other = (TOKENIZER.encode(text, add_special_tokens=False) for text in ("Paris is", "Rome is"))
    deltas = Deltas(lambda _: None, Request("a", [1], SamplingParams(), stream=True), TOKENIZER)
    deltas.advance(Generated(one))
    with pytest.raises(EngineError, match="differs"):
        deltas.finish(output(other, Ending(FinishReason.LENGTH), text="Rome is"))


def test_of_a_constrained_answer_only_what_lasts_comes_before_its_end() -> None:
    token_ids = TOKENIZER.encode('{"city":"Paris","country":"France"}', add_special_tokens=False)
    params = SamplingParams.parse({"constraint": {"json": True}, "max_tokens": 2 * len(token_ids) - 6})
    ending = Ending(FinishReason.STOP, complete=True)
    given, answer = stream(params, token_ids, ending, [1] * len(token_ids))
    assert [len(delta.token_ids) for delta in given] == [1] * (len(token_ids) - 3) + [3]
    assert "".join(delta.text for delta in given) == TOKENIZER.joined(token_ids)
    assert answer.token_ids == token_ids

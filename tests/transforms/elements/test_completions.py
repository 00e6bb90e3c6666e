import pickle
from typing import Any

import apache_beam as beam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.errors import ErrorInfo, InvalidRequest
from millrace.model_manager.wire.logprobs import TokenLogprob, TopLogprob
from millrace.model_manager.wire.request import FinishReason
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings
from millrace.transforms.elements.completions import Choice, Completion, DeadLetter, Prompt, StructCoder, Usage
from millrace.transforms.elements.prompt_rows import RowShape, parse_row

text = st.text(st.characters(codec="utf-8"), min_size=1)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
columns = st.dictionaries(text, json_values, max_size=4)
prompts = st.builds(Prompt, id=text, text=text, columns=columns, params=st.just({"max_tokens": 3, "stop": ["a"]}))


def coded(element: Any) -> Any:
    """As it comes out at the other end."""
    coder = beam.coders.registry.get_coder(type(element))
    return coder.decode(coder.encode(element))


@given(prompts)
def test_a_prompt_survives_its_coder(prompt: Prompt) -> None:
    assert coded(prompt) == prompt


@given(text, text, columns, st.lists(st.integers(0, 2**31)))
def test_a_completion_survives_its_coder(identity: str, said: str, further: dict[str, Any], tokens: list[int]) -> None:
    completion = Completion(
        id=identity,
        text=said,
        finish_reason=FinishReason.STOP,
        stop_reason=7,
        usage=Usage(3, 2, 1),
        timings=Timings(0.1, 0.2, 0.3),
        model="m",
        token_ids=tokens,
        choices=[Choice(text=said, finish_reason=FinishReason.STOP, stop_reason="x", token_ids=tokens)],
        logprobs=[TokenLogprob(said, 7, -0.5, [TopLogprob("x", 8, -9999.0)])],
        columns=further,
        error=ErrorInfo(kind="A", message="b"),
    )
    assert coded(completion) == completion


@given(text, json_values)
def test_a_dead_letter_survives_its_coder(identity: str, row: Any) -> None:
    letter = DeadLetter(id=identity, error="InvalidRequest", reason="no prompt", row=row, source="a:1")
    assert coded(letter) == letter


@given(columns)
def test_equal_prompts_have_equal_bytes_whatever_the_order_of_their_columns(further: dict[str, Any]) -> None:
    backwards = dict(reversed(further.items()))
    one, other = (Prompt(text="a", columns=order) for order in (further, backwards))
    coder = beam.coders.registry.get_coder(Prompt)
    assert coder.encode(one) == coder.encode(other)
    assert coder.is_deterministic()


@pytest.mark.parametrize("element", [Prompt, Completion, DeadLetter])
def test_beam_finds_the_coder_by_the_type(element: type) -> None:
    coder = beam.coders.registry.get_coder(element)
    assert coder == StructCoder(element) != StructCoder(Usage)
    assert coder.to_type_hint() is element
    assert pickle.loads(pickle.dumps(coder)) == coder


def test_a_prompt_can_be_pickled() -> None:
    prompt = Prompt(text="a", columns={"b": [1]})
    assert pickle.loads(pickle.dumps(prompt)) == prompt


@pytest.mark.parametrize("content", [{}, {"text": ""}, {"text": "a", "token_ids": [1]}, {"messages": []}])
def test_a_prompt_has_exactly_one_content_that_is_not_empty(content: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Prompt(**content)


@given(st.builds(Prompt, id=text, text=text, params=st.just({"max_tokens": 3}), source=st.just("here")))
def test_the_row_of_a_prompt_reads_as_that_prompt(prompt: Prompt) -> None:
    assert parse_row(prompt.row(), RowShape(), position="here") == prompt


def test_the_row_of_a_prompt_read_as_json_is_the_original() -> None:
    original = '{"custom_id": "a", "body": {"prompt": "b"}}'
    prompt = Prompt(id="a", text="b", original=original)
    assert prompt.row() == {"custom_id": "a", "body": {"prompt": "b"}}


def test_digests_tell_apart_jobs_ids_contents_and_parameters() -> None:
    params, others = SamplingParams(), SamplingParams(max_tokens=1)
    digests = {
        Prompt(id="1", text="a").digest("job", params),
        Prompt(id="1", text="a").digest("other", params),
        Prompt(id="2", text="a").digest("job", params),
        Prompt(id="1", text="b").digest("job", params),
        Prompt(id="1", text="a").digest("job", others),
    }
    assert len(digests) == 5
    assert Prompt(id="1", text="a", columns={"x": 1}).digest("job", params) in digests


def test_a_prompt_with_biased_tokens_survives_its_coder_and_has_a_digest() -> None:
    prompt = Prompt(id="a", text="hello", params={"logit_bias": {100: 5.0, 7: -1.0}})
    coder = beam.coders.registry.get_coder(Prompt)
    assert coder.encode(prompt) == coder.encode(
        Prompt(id="a", text="hello", params={"logit_bias": {7: -1.0, 100: 5.0}})
    )
    params = SamplingParams().updated(coder.decode(coder.encode(prompt)).params)
    assert params.logit_bias == {100: 5.0, 7: -1.0}
    assert prompt.digest("job", params) != prompt.digest("job", SamplingParams())

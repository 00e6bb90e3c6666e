from typing import Any

import pytest

from millrace.model_manager.wire.errors import InvalidRequest
from millrace.transforms.elements import openai_batch
from millrace.transforms.elements.completions import Prompt
from millrace.transforms.elements.prompt_rows import RowShape, parse_row

MESSAGES = [{"role": "user", "content": "hi"}]


def parsed(body: Any, **row: Any) -> Prompt:
    row = {"custom_id": "c1", "method": "POST", "url": "/v1/chat/completions"} | row | {"body": body}
    return parse_row(row, RowShape(), position="file:0")


def test_a_chat_request_becomes_a_prompt_and_the_rest_rides_along() -> None:
    prompt = parsed({"model": "gpt", "messages": MESSAGES, "max_tokens": 5, "temperature": 0.5, "user": "u"})
    assert (prompt.id, prompt.messages) == ("c1", MESSAGES)
    assert prompt.params == {"max_tokens": 5, "temperature": 0.5}
    assert prompt.columns == {"method": "POST", "url": "/v1/chat/completions", "model": "gpt", "user": "u"}


def test_a_completion_request_becomes_a_prompt() -> None:
    prompt = parsed({"prompt": "a", "stop": ["x"], "seed": 3, "top_p": 0.5}, url="/v1/completions")
    assert (prompt.text, prompt.params) == ("a", {"stop": ["x"], "seed": 3, "top_p": 0.5})


def test_several_answers_and_scheduling_are_taken_over() -> None:
    asked = {"n": 3, "priority": 2, "deadline": 1.5, "cache_salt": "x", "adapter": "org/a"}
    assert parsed({"messages": MESSAGES} | asked).params == asked


def test_max_completion_tokens_is_max_tokens() -> None:
    assert parsed({"messages": MESSAGES, "max_completion_tokens": 9}).params == {"max_tokens": 9}


@pytest.mark.parametrize(
    "harmless",
    [
        {"n": 1},
        {"best_of": 1},
        {"stream": False},
        {"logprobs": False},
        {"logprobs": None},
        {"tools": []},
        {"response_format": {"type": "text"}},
    ],
)
def test_values_that_change_nothing_are_accepted(harmless: dict[str, Any]) -> None:
    assert parsed({"messages": MESSAGES} | harmless).messages == MESSAGES


@pytest.mark.parametrize(
    "unsupported",
    [
        {"best_of": 2},
        {"stream": True},
        {"tools": [{}]},
        {"response_format": {"type": "grammar"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "extra": 1}}},
        {"response_format": {"type": "json_object"}, "constraint": {"json": True}},
        {"response_format": "json"},
        {"something_new": 1},
    ],
)
def test_what_would_change_the_answer_is_refused_by_its_name(unsupported: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=rf"body\.{next(iter(unsupported))}\b"):
        parsed({"messages": MESSAGES} | unsupported)


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


@pytest.mark.parametrize(
    ("asked", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            {"json_schema": SCHEMA},
        ),
        ({"constraint": {"regex": "a+"}}, {"regex": "a+"}),
    ],
)
def test_what_the_answer_must_be_is_a_constraint(asked: dict[str, Any], constraint: dict[str, Any]) -> None:
    assert parsed({"messages": MESSAGES} | asked).params == {"constraint": constraint}


def test_an_impossible_constraint_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"^constraint"):
        parsed({"messages": MESSAGES, "constraint": {"regex": "a", "json": True}})


def test_a_plain_row_has_its_constraint_in_a_column() -> None:
    row = {"prompt": "a", "constraint": {"choice": ["yes", "no"]}}
    assert parse_row(row, RowShape(), position="file:0").params == {"constraint": {"choice": ["yes", "no"]}}


def test_sampling_parameters_of_the_body_are_taken_also_those_that_vllm_adds() -> None:
    given = {
        "presence_penalty": 0.5,
        "frequency_penalty": -1,
        "logit_bias": {"50": -100},
        "min_p": 0.1,
        "min_tokens": 2,
    }
    assert parsed({"messages": MESSAGES} | given).params == given


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"logprobs": 3}, 3),
        ({"logprobs": 0}, 0),
        ({"top_logprobs": 0}, None),
        ({"logprobs": False}, None),
    ],
)
def test_log_probabilities_are_asked_for_as_either_endpoint_does(asked: dict[str, Any], count: int | None) -> None:
    assert parsed({"messages": MESSAGES} | asked).params.get("logprobs") == count


def test_alternatives_without_log_probabilities_are_refused() -> None:
    for asked in ({"top_logprobs": 2}, {"logprobs": False, "top_logprobs": 2}, {"logprobs": 5, "top_logprobs": 2}):
        with pytest.raises(InvalidRequest, match="top_logprobs=2"):
            parsed({"messages": MESSAGES} | asked)


@pytest.mark.parametrize("row", [{"url": "/v1/embeddings"}, {"method": "GET"}])
def test_other_endpoints_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(row))):
        parsed({"messages": MESSAGES}, **row)


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="body"):
        parsed("hi")


@pytest.mark.parametrize(
    "beside", [{"max_tokens": 1}, {"max_tokens": None}, {"sampling_params": {"max_tokens": 1}}, {"constraint": "x"}]
)
@pytest.mark.parametrize("own", [{}, {"max_tokens": 8}])
def test_parameters_beside_the_body_are_columns(beside: dict[str, Any], own: dict[str, Any]) -> None:
    prompt = parsed({"messages": MESSAGES, **own}, **beside)
    assert prompt.params == own
    assert {name: prompt.columns[name] for name in beside} == beside


@pytest.mark.parametrize("body", [None, "hi", [1], 5])
def test_a_body_that_is_no_object_makes_a_batch_row_all_the_same(body: Any) -> None:
    row = {"custom_id": "a", "body": body}
    assert openai_batch.is_batch_row(row)
    assert openai_batch.endpoint_of(row) == openai_batch.CHAT_URL
    with pytest.raises(InvalidRequest, match=r"^body=.*: takes an object$"):
        parse_row(row, RowShape(), position="file:0")
    assert openai_batch.is_batch_row({"url": openai_batch.CHAT_URL, "body": body})
    assert not openai_batch.is_batch_row({"url": "https://host/page", "body": body})
    assert not openai_batch.is_batch_row(row | {"prompt": "p"})
    assert not openai_batch.is_batch_row({"text": "t", **row}, "text")


def test_a_column_called_body_alone_makes_no_batch_row() -> None:
    prompt = parse_row({"prompt": "a", "body": "letter"}, RowShape(), position="file:0")
    assert prompt.columns == {"body": "letter"}

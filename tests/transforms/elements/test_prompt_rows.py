from typing import Any

import pytest

from millrace.model_manager.wire.errors import InvalidRequest
from millrace.transforms.elements.completions import Prompt
from millrace.transforms.elements.prompt_rows import RowShape, parse_row


def parsed(row: Any, **shape: Any) -> Prompt:
    return parse_row(row, RowShape(**shape), position="file:0")


def test_a_bare_string_is_a_prompt_known_by_its_position() -> None:
    assert parsed("hello") == Prompt(id="file:0", text="hello", source="file:0")


@pytest.mark.parametrize(
    ("row", "identity"), [({"id": "a"}, "a"), ({"id": 7}, "7"), ({"custom_id": "c"}, "c"), ({}, "file:0")]
)
def test_the_id_is_the_rows_own_or_its_position(row: dict[str, Any], identity: str) -> None:
    assert parsed(row | {"prompt": "x"}).id == identity


def test_an_empty_id_is_none() -> None:
    assert parsed({"id": None, "prompt": "x"}).id == "file:0"


def test_prompts_are_text_messages_or_token_ids() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert parsed({"prompt": "a"}).text == "a"
    assert parsed({"prompt": [1, 2]}).token_ids == [1, 2]
    assert parsed({"messages": messages}).messages == messages
    assert parsed({"prompt": messages}).messages == messages


def test_text_parts_of_a_message_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parsed({"messages": [{"role": "user", "content": parts}]}).messages == [{"role": "user", "content": "a\nb"}]


def test_further_columns_ride_along_whatever_their_names() -> None:
    row = {"prompt": "a", "text": 1, "usage": None, "columns": {"finish_reason": [2]}, "model": "m", "source": "s"}
    assert parsed(row).columns == {name: value for name, value in row.items() if name != "prompt"}


def test_sampling_parameters_are_taken_from_the_row() -> None:
    row = {"prompt": "a", "max_tokens": 3, "stop": "x", "top_p": None, "sampling_params": {"max_tokens": 4, "seed": 1}}
    prompt = parsed(row)
    assert prompt.params == {"max_tokens": 4, "seed": 1, "stop": "x"}
    assert prompt.columns == {}


def test_sampling_parameters_can_be_left_to_the_columns() -> None:
    prompt = parsed({"prompt": "a", "temperature": 25.3}, row_params=False)
    assert (prompt.params, prompt.columns) == ({}, {"temperature": 25.3})


def test_columns_can_be_named() -> None:
    prompt = parsed({"question": "a", "key": "k", "prompt": "b", "id": "c"}, prompt_column="question", id_column="key")
    assert (prompt.text, prompt.id, prompt.columns) == ("a", "k", {"prompt": "b", "id": "c"})


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"promt": "a"}, "`promt`"),
        ({"prompt": None}, "`prompt` is null"),
        ({"prompt": ""}, "empty"),
        ({"prompt": 3}, "a number"),
        ({"prompt": ["a"]}, "messages"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "both"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "b"}]}, "role"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": "b", "name": "n"}]}, "got name too"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"prompt": "a", "id": [1]}, "`id`"),
        ({"prompt": "a", "id": True}, "`id`"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": "a", "sampling_params": {"maxtokens": 1}}, "'maxtokens': did you mean max_tokens"),
        (
            {"custom_id": "a", "body": {"prompt": "a", "max_token": 1}},
            "body.max_token is not .*: did you mean max_tokens",
        ),
        ({"prompt": "a", "sampling_params": 3}, "sampling_params"),
        (3, "a number"),
        (None, "null"),
        ([1], "a list"),
    ],
)
def test_a_bad_row_is_refused_by_what_is_wrong_with_it(row: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        parsed(row)


@pytest.mark.parametrize("depth", [101, 900])
def test_rows_that_are_nested_too_deeply_are_refused(depth: int) -> None:
    row: dict[str, Any] = {"prompt": "a"}
    for _ in range(depth):
        row = {"prompt": "a", "x": row}
    with pytest.raises(InvalidRequest, match="100 levels"):
        parse_row(row, RowShape(), position="file:0")


def test_rows_with_columns_url_and_body_are_ordinary_where_they_have_a_prompt() -> None:
    row = {"url": "http://a", "body": {"x": 1}}
    prompt = parse_row(row | {"prompt": "a"}, RowShape(), position="file:0")
    assert (prompt.text, prompt.columns) == ("a", row)
    assert parse_row({"url": "u", "body": "b"}, RowShape(prompt_column="body"), position="").text == "b"
    batch = {"key": 7, "url": "/v1/completions", "body": {"prompt": "a"}}
    assert parse_row(batch, RowShape(id_column="key"), position="").id == "7"

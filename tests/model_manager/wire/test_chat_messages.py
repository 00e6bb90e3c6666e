"""One parser of chat messages, for rows and for templates: what it takes, joins, leaves out and refuses."""

from typing import Any

import pytest

from millrace.model_manager.wire.chat_messages import parse_messages
from millrace.model_manager.wire.errors import InvalidRequest


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hello", "hello"),
        ("", ""),
        ([], ""),
        ([part("a")], "a"),
        ([part("a"), part("b "), part("")], "a\nb \n"),
    ],
)
def test_the_texts_of_a_content_in_parts_are_joined_by_newlines(content: Any, text: str) -> None:
    assert parse_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": text}]


def test_any_sequence_of_mappings_will_do_and_keys_without_a_value_are_left_out() -> None:
    messages = ({"role": "user", "content": "a", "name": None, "tool_calls": None},)
    assert parse_messages(messages) == [{"role": "user", "content": "a"}]


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "messages: takes a list of at least one {role, content}"),
        ("hello", "messages: takes a list"),
        (b"hello", "messages: takes a list"),
        ({"role": "user", "content": "a"}, "messages: takes a list"),
        (None, "messages: takes a list"),
        (["hello"], r"messages\[0\]: takes {role, content}, got str"),
        ([*user("a"), {"role": "user", "content": "b", "tools": []}], r"messages\[1\]: .*got tools too"),
        ([{"content": "a"}], r"messages\[0\]\.role: takes text such as 'user', got nothing"),
        ([{"role": 1, "content": "a"}], r"messages\[0\]\.role: .*got int"),
        ([{"role": "", "content": "a"}], r"messages\[0\]\.role"),
        ([{"role": "user"}], r"messages\[0\]\.content: takes text or a list of text parts, got nothing"),
        (user(b"a"), r"messages\[0\]\.content: .*got bytes"),
        (user(["a"]), r"messages\[0\]\.content\[0\]: takes .*got str"),
        (user([part("a"), {"type": "image_url", "image_url": "x"}]), r"content\[1\]: .*got a part of type 'image_url'"),
        (user([{"type": "text", "text": 1}]), r"content\[0\]: takes"),
    ],
)
def test_what_are_no_messages_is_refused_with_its_place(messages: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parse_messages(messages)

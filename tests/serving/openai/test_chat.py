"""`/v1/chat/completions`, asked by OpenAI's own client: conversations, typed answers, calls of functions."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.serving.servers import MODEL, Server

SAID: Any = [{"role": "user", "content": "Which town is it?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": ["Paris", "Rome"]}, "unit": {"$ref": "#/$defs/unit"}},
            "required": ["town", "unit"],
            "additionalProperties": False,
            "$defs": {"unit": {"enum": ["C", "F"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


class Town(BaseModel):
    """What is asked for."""

    name: Literal["Paris", "Rome"]
    large: bool


def test_a_stream_begins_with_the_role_and_joined_is_the_whole(server: Server) -> None:
    whole = server.client().chat.completions.create(messages=SAID, max_completion_tokens=9, **GREEDY)
    parts = list(server.client().chat.completions.create(messages=SAID, max_tokens=9, stream=True, **GREEDY))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert {part.id for part in parts} == {parts[0].id}


def test_content_in_parts_and_messages_of_a_dialogue_are_taken(server: Server) -> None:
    dialogue: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", **CLOCK}]},
        {"role": "tool", "tool_call_id": "1", "content": "12:00"},
    ]
    answer = server.client().chat.completions.create(messages=dialogue, max_tokens=3, **GREEDY)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_an_answer_goes_on_to_the_end_of_the_models_positions_if_nothing_else_ends_it(server: Server) -> None:
    answer = server.client().chat.completions.create(messages=SAID, **GREEDY)
    assert answer.usage is not None
    limit = server.post("/tokenize", {"messages": SAID}).json()["max_model_len"]
    assert answer.usage.total_tokens == limit


def test_an_answer_is_a_value_of_a_pydantic_model(server: Server) -> None:
    asked: Any = {"messages": SAID, "response_format": Town, "max_tokens": 60, **GREEDY}
    parsed = server.client().chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(parsed, Town)
    with server.client().chat.completions.stream(**asked) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed


def test_log_probabilities_have_as_many_alternatives_as_were_asked_for(server: Server) -> None:
    asked: Any = {"messages": SAID, "logprobs": True, "top_logprobs": 3, "max_tokens": 4, **GREEDY}
    found = server.client().chat.completions.create(**asked).choices[0].logprobs
    assert found is not None
    assert [len(each.top_logprobs) for each in found.content or []] == [3] * 4
    parts = server.client().chat.completions.create(stream=True, **asked)
    streamed = [each for part in parts if (got := part.choices[0].logprobs) for each in got.content or []]
    assert [each.token for each in streamed] == [each.token for each in found.content or []]


@pytest.mark.parametrize(
    ("choice", "reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")],
)
def test_a_function_is_called_with_arguments_of_its_schema(server: Server, choice: Any, reason: str) -> None:
    tools: Any = [WEATHER] if choice == "required" else [CLOCK, WEATHER]
    asked: Any = {"messages": SAID, "tools": tools, "tool_choice": choice, "max_tokens": 80, **GREEDY}
    answer = server.client().chat.completions.create(**asked).choices[0]
    (call,) = answer.message.tool_calls or []
    assert (answer.finish_reason, answer.message.content) == (reason, None)
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, set(arguments)) == ("weather", {"town", "unit"})
    assert arguments["unit"] in ("C", "F")
    with server.client().chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == reason
    assert streamed.message.tool_calls
    assert streamed.message.tool_calls[0].function.name == "weather"
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments


@pytest.mark.parametrize("max_tokens", [1, 3, 8, 12, 16, 20, 28])
def test_a_call_that_is_cut_is_the_same_whole_and_streamed(server: Server, max_tokens: int) -> None:
    asked: Any = {"messages": SAID, "tools": [WEATHER], "tool_choice": "required", "max_tokens": max_tokens, **GREEDY}
    whole = server.client().chat.completions.create(**asked).choices[0]
    parts = [part.choices[0] for part in server.client().chat.completions.create(stream=True, **asked)]
    calls = [call for part in parts for call in part.delta.tool_calls or []]
    assert "".join(part.delta.content or "" for part in parts) == (whole.message.content or "")
    assert [each.function.name for each in calls if each.function.name] == [
        each.function.name for each in whole.message.tool_calls or []
    ]
    assert "".join(each.function.arguments or "" for each in calls) == "".join(
        each.function.arguments for each in whole.message.tool_calls or []
    )
    assert parts[-1].finish_reason == whole.finish_reason == "length"
    assert whole.message.content or whole.message.tool_calls


@pytest.mark.parametrize("max_tokens", [3, 80])
def test_a_streamed_call_has_the_log_probability_of_each_token(server: Server, max_tokens: int) -> None:
    asked: Any = {"messages": SAID, "tools": [WEATHER], "tool_choice": "required", "max_tokens": max_tokens, **GREEDY}
    whole = server.client().chat.completions.create(logprobs=True, **asked).choices[0].logprobs
    parts = server.client().chat.completions.create(logprobs=True, stream=True, **asked)
    streamed = [each for part in parts if (got := part.choices[0].logprobs) for each in got.content or []]
    assert whole is not None
    assert streamed == whole.content
    assert not any(part.choices[0].logprobs for part in server.client().chat.completions.create(stream=True, **asked))


def test_with_auto_an_answer_is_text_or_a_call(server: Server) -> None:
    asked: Any = {"messages": SAID, "tools": [WEATHER, CLOCK], "max_tokens": 40, **GREEDY}
    answer = server.client().chat.completions.create(**asked).choices[0]
    assert bool(answer.message.content) != bool(answer.message.tool_calls)
    refused = server.client().chat.completions.create(**asked, tool_choice="none").choices[0]
    assert refused.message.tool_calls is None

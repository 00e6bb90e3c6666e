"""`/v1/responses`, asked by OpenAI's own client: text, typed answers, calls of functions, and their events."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.serving.servers import MODEL, Server

GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}
SAID = "Which town is it?"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a town.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"town": {"enum": ["Paris", "Rome"]}},
        "required": ["town"],
        "additionalProperties": False,
    },
}


JSON_OBJECT = {"format": {"type": "json_object"}}


def schema_of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "a", "schema": schema, **more}}


class Town(BaseModel):
    """What is asked for."""

    name: Literal["Paris", "Rome"]


def chatted(server: Server, messages: list[Any], **more: Any) -> Any:
    asked = {**GREEDY, "messages": messages, **more}
    return server.client().chat.completions.create(**asked).choices[0]


def test_a_text_is_answered_as_a_conversation_is(server: Server) -> None:
    answer = server.client().responses.create(input=SAID, instructions="Be brief.", max_output_tokens=12, **GREEDY)
    system = {"role": "system", "content": "Be brief."}
    same = chatted(server, [system, {"role": "user", "content": SAID}], max_tokens=12)
    assert answer.output_text == same.message.content
    assert (answer.object, answer.model, answer.instructions) == ("response", MODEL, "Be brief.")
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.usage.input_tokens > 5) == (12, True)
    assert answer.usage.total_tokens == answer.usage.input_tokens + 12


def test_items_are_a_conversation(server: Server) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"town": "Rome"}'}
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    function = {"name": "weather", "arguments": '{"town": "Rome"}'}
    messages: list[Any] = [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    answer = server.client().responses.create(input=items, max_output_tokens=6, **GREEDY)
    assert answer.output_text == chatted(server, messages, max_tokens=6).message.content


def test_null_is_as_if_absent_in_a_message(server: Server) -> None:
    message = {"role": "user", "content": "a"}
    asked = {**GREEDY, "max_output_tokens": 6}
    plain, nulls = (
        server.post("/v1/responses", {**asked, "input": [each]})
        for each in (message, {"type": None, "id": None, "status": None, **message})
    )
    assert nulls.status_code == 200, nulls.text
    assert nulls.json()["output"][0]["content"] == plain.json()["output"][0]["content"]
    wrong = server.post("/v1/responses", {**asked, "input": [{"type": None, "role": "user", "content": BAD_PART}]})
    assert wrong.json()["error"]["param"] == "input[0].content[0]"


def test_an_answer_is_of_a_type(server: Server) -> None:
    answer = server.client().responses.parse(input=SAID, text_format=Town, **GREEDY)
    assert isinstance(answer.output_parsed, Town)
    assert answer.status == "completed"
    plain = server.client().responses.create(input=SAID, text={"format": {"type": "json_object"}}, **GREEDY)
    assert isinstance(json.loads(plain.output_text), dict)


def test_a_stream_is_typed_events_in_order(server: Server) -> None:
    asked: dict[str, Any] = {**GREEDY, "input": SAID, "max_output_tokens": 12}
    whole = server.client().responses.create(**asked)
    events = list(server.client().responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(event.delta for event in events[4:-4]) == whole.output_text
    last = events[-1].response
    assert (last.output_text, last.usage) == (whole.output_text, whole.usage)


def test_the_clients_own_helper_follows_a_stream(server: Server) -> None:
    with server.client().responses.stream(input=SAID, text_format=Town, **GREEDY) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Town)
    assert (
        final.output_text
        == server.client()
        .responses.create(
            input=SAID,
            text={"format": {"type": "json_schema", "name": "t", "schema": Town.model_json_schema()}},
            **GREEDY,
        )
        .output_text
    )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_function_is_called(server: Server, choice: Any) -> None:
    asked: dict[str, Any] = {**GREEDY, "input": SAID, "tools": [WEATHER], "tool_choice": choice}
    (call,) = server.client().responses.create(**asked).output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments).keys()) == ("weather", {"town"})
    with server.client().responses.stream(**asked) as stream:
        events = list(stream)
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
    parts = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(parts) == call.arguments
    kinds = [event.type for event in events]
    assert "response.function_call_arguments.done" in kinds
    assert "response.output_text.delta" not in kinds


def test_a_call_that_is_cut_before_its_name_is_a_text_whole_and_streamed(server: Server) -> None:
    asked: dict[str, Any] = {**GREEDY, "input": SAID, "tools": [WEATHER], "tool_choice": "required"}
    asked |= {"max_output_tokens": 3, "include": ["message.output_text.logprobs"]}
    (whole,) = server.client().responses.create(**asked).output
    *_, last = server.client().responses.create(stream=True, **asked)
    (streamed,) = last.response.output
    assert (whole.type, streamed.type, last.type) == ("message", "message", "response.incomplete")
    assert len(whole.content[0].logprobs) == 3
    assert streamed.content == whole.content


def test_log_probabilities_are_given(server: Server) -> None:
    asked: dict[str, Any] = {**GREEDY, "input": SAID, "max_output_tokens": 4, "top_logprobs": 2}
    answer = server.client().responses.create(include=["message.output_text.logprobs"], **asked)
    found = answer.output[0].content[0].logprobs
    assert len(found) == 4
    assert all(len(each.top_logprobs) == 2 for each in found)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: is not taken"),
        ({"conversation": "c"}, "conversation: is not taken"),
        ({"background": True}, "background: is not taken"),
        ({"n": 2}, "n: is not taken"),
        ({"input": [{"type": "image"}]}, "input[0]: takes an item"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]: takes a part"),
        ({"input": 7}, "input: takes a text"),
        ({"input": []}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]: takes a tool of type function"),
        ({"include": ["file_search_call.results"]}, "include="),
        ({"temperature": 900}, "temperature=900"),
        ({"text": {"format": {"type": "xml"}}}, "text.format={'type': 'xml'}: takes type text"),
        ({"text": {"format": {}}}, "text.format={}: takes type text, json_object, or json_schema with name and schema"),
        (
            {"text": {"format": {"type": "nope"}}},
            "text.format={'type': 'nope'}: takes type text, json_object, or json_schema with name and schema",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format: type json_schema takes a JSON Schema in its mem"),
        ({"text": JSON_OBJECT, "tools": [WEATHER]}, "text.format: takes nothing beside tools"),
        ({"truncation": "x"}, "truncation="),
    ],
)
def test_what_is_not_taken_is_told(server: Server, body: dict[str, Any], told: str) -> None:
    answer = server.post("/v1/responses", {"model": MODEL, "input": "a", **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(told)


def test_no_response_is_kept(server: Server) -> None:
    answer = server.client().responses.create(input=SAID, store=True, max_output_tokens=1, **GREEDY)
    with pytest.raises(openai.NotFoundError):
        server.client().responses.retrieve(answer.id)


BAD_PART = [{"type": "input_text", "text": 5}]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": [{"role": "user", "content": BAD_PART}]}, "input[0].content[0]"),
        ({"input": [{"type": "reasoning"}, {"role": "user", "content": BAD_PART}]}, "input[1].content[0]"),
        ({"input": [{"role": "x", "content": "a"}], "instructions": "Be brief."}, "input"),
        ({"input": [{"role": "user", "content": BAD_PART}], "tools": [WEATHER]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "a"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": 5, "name": "f"}]}, "input[0]"),
        ({"input": "a", "text": schema_of(None)}, "text.format"),
        ({"input": "a", "text": schema_of({}, more=1)}, "text.format"),
        ({"input": "a", "text": schema_of({"type": "x"})}, "text.format"),
        ({"input": "a", "text": schema_of({"$ref": "#/$defs/a"})}, "text.format"),
        ({"input": "a", "text": schema_of({"type": "x"}), "tools": [WEATHER], "tool_choice": "none"}, "text.format"),
        ({"input": "a", "tools": [{**WEATHER, "parameters": {"type": "x"}}], "tool_choice": "required"}, "tools"),
        ({"input": "a", "response_format": {"type": "x"}}, "response_format"),
        ({"input": "a", "max_output_tokens": 0, "text": JSON_OBJECT}, "max_output_tokens"),
    ],
)
def test_errors_name_what_was_sent(server: Server, more: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/responses", {"model": MODEL, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["message"].startswith(param)


def test_a_truncation_that_is_not_done_is_named(server: Server) -> None:
    asked = {**GREEDY, "input": SAID, "max_output_tokens": 1}
    assert server.post("/v1/responses", asked | {"truncation": "auto"}).headers["x-millrace-ignored"] == "truncation"
    assert "x-millrace-ignored" not in server.post("/v1/responses", asked | {"truncation": "disabled"}).headers

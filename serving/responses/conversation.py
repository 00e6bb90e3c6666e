"""A body of `/v1/responses` as one of `/v1/chat/completions`: the same conversation, tools and parameters.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import InvalidRequest

from ..openai.bodies import Body

_TEXTS = ("input_text", "output_text", "text")
_SAME = ("model", "temperature", "top_p", "parallel_tool_calls", "top_logprobs", "user", "metadata", "service_tier")
"""Fields that both bodies have."""
_IN_MESSAGE = re.compile(r"messages\b(?:\[(\d+)\](\.\w+)?)?")
_IN_FORMAT = re.compile(r"response_format\b(?:\.json_schema\b)?")
_LOGPROBS = "message.output_text.logprobs"
REFUSED = {
    "previous_response_id": "the server keeps no response; send the whole conversation as input",
    "conversation": "the server keeps no conversation; send it as input",
    "prompt": "the server keeps no prompts; send its text as instructions",
    "background": "takes false; a batch runs beside its client (/v1/batches)",
    "n": "a response is one answer",
    "max_tool_calls": "there are no tools that the server calls itself",
}
"""Fields that are about what a server keeps or does between requests."""


class ResponsesBody(Body, frozen=True, kw_only=True):
    """`/v1/responses`. Further fields are sampling parameters, under their names in SamplingParams."""

    input: Any = msgspec.field()
    """A text, or a list of items: messages, calls of functions and what these gave."""
    instructions: str | None = None
    """A system message before the input."""
    max_output_tokens: int | None = None
    """Most tokens to generate; by default as many as the model has positions."""
    text: Any = None
    """`format`: text, json_object or json_schema."""
    tools: list[Any] = msgspec.field(default_factory=list)
    """Functions that the answer may call, at most 128."""
    tool_choice: Any = None
    """none, auto (by default, if there are tools), required, or a function by its name."""
    stream: bool = False
    """Send the answer as typed server-sent events, as it is generated."""
    store: bool = False
    """No effect: no response is kept."""
    include: list[str] = msgspec.field(default_factory=list)
    """`message.output_text.logprobs`."""
    previous_response_id: str | None = None
    """Refused: the server keeps no response."""
    truncation: str = "disabled"
    """Takes disabled; auto has no effect: a conversation that is too long is refused."""
    reasoning: Any = None
    """No effect."""


_OWN = frozenset(ResponsesBody.__struct_fields__)


def chat_fields(fields: Mapping[str, Any], body: ResponsesBody) -> dict[str, Any]:
    """The fields of a conversation's body; raises InvalidRequest, which names the field."""
    for name, reason in REFUSED.items():
        if fields.get(name) not in (None, False):
            raise InvalidRequest(f"{name}: is not taken: {reason}")
    if body.truncation not in ("disabled", "auto"):
        raise InvalidRequest(f"truncation={body.truncation!r}: takes disabled")
    if unknown := [each for each in body.include if each != _LOGPROBS]:
        raise InvalidRequest(f"include={unknown[0]!r}: takes {_LOGPROBS}")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise InvalidRequest(f"max_output_tokens={body.max_output_tokens}: takes 1 or more")
    given = {name: fields[name] for name in fields if name not in _OWN or name in _SAME}
    if body.truncation == "auto":
        given["truncation"] = body.truncation  # no conversation has it, so the answer names it as ignored
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    asked = {
        "messages": [*system, *_messages(body.input)],
        "tools": [_tool(f"tools[{index}]", each) for index, each in enumerate(body.tools)],
        "tool_choice": _choice(body.tool_choice),
        "response_format": _format(body.text),
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": True if _LOGPROBS in body.include or fields.get("top_logprobs") else None,
    }
    return given | {name: value for name, value in asked.items() if value is not None}


def as_sent(error: InvalidRequest, body: ResponsesBody) -> InvalidRequest:
    """An error about a message of the conversation, as one about the item of the input that it was made of; about its
    format, as one about `text.format`.
    """
    if body.text is not None and (named := _IN_FORMAT.match(str(error))):
        return InvalidRequest(f"text.format{str(error)[named.end() :]}")
    found = _IN_MESSAGE.match(str(error))
    if found is None:
        return error
    rest, field = str(error)[found.end() :], found[2] or ""
    if found[1] is None:
        return InvalidRequest(f"input{rest}")
    names = _names(body)[int(found[1])]
    return InvalidRequest(names.get(field, names[""] + field) + rest)


def _names(body: ResponsesBody) -> list[dict[str, str]]:
    """Names for errors: of each message the part of the body that it was made of, and the parts of its fields."""
    names = [{"": "instructions", ".content": "instructions"}] if body.instructions else []
    if isinstance(body.input, str):
        return [*names, {"": "input", ".content": "input"}]
    for index, item in enumerate(body.input):
        name, kind = f"input[{index}]", _kind(item)
        if kind != "reasoning":
            output = {".content": f"{name}.output"} if kind == "function_call_output" else {}
            names.append({"": name, ".tool_calls": name, ".tool_call_id": f"{name}.call_id", **output})
    return names


def _messages(given: Any) -> Iterator[dict[str, Any]]:
    if isinstance(given, str):
        yield {"role": "user", "content": given}
        return
    if not isinstance(given, list):
        raise InvalidRequest("input: takes a text or a list of items")
    for index, item in enumerate(given):
        name = f"input[{index}]"
        kind = _kind(item) if isinstance(item, Mapping) else None
        if kind == "message":
            yield {"role": item.get("role"), "content": _content(f"{name}.content", item.get("content"))}
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            yield {"role": "assistant", "tool_calls": [call]}
        elif kind == "function_call_output":
            content = _content(f"{name}.output", item.get("output"))
            yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
        elif kind != "reasoning":  # another model's thoughts are no part of this one's conversation
            raise InvalidRequest(f"{name}: takes an item of type message, function_call or function_call_output")


def _kind(item: Mapping[str, Any]) -> Any:
    """The type of an item; one without is a message."""
    given = item.get("type")
    return "message" if given is None else given


def _content(name: str, given: Any) -> Any:
    """Parts in the names that conversations have for them."""
    if not isinstance(given, list):
        return given
    parts = []
    for index, part in enumerate(given):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _TEXTS:
            raise InvalidRequest(f"{name}[{index}]: takes a part of type input_text or output_text, got {kind!r}")
        parts.append({"type": "text", "text": part.get("text")})
    return parts


def _tool(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or given.get("type") != "function":
        raise InvalidRequest(f"{name}: takes a tool of type function")
    kept = {key: given[key] for key in ("name", "description", "parameters", "strict") if given.get(key) is not None}
    return {"type": "function", "function": kept}


def _choice(given: Any) -> Any:
    if isinstance(given, Mapping) and given.get("type") == "function":
        return {"type": "function", "function": {"name": given.get("name")}}
    return given


def _format(text: Any) -> dict[str, Any] | None:
    asked = text.get("format") if isinstance(text, Mapping) else text
    if asked is None:
        return None
    if not isinstance(asked, Mapping):
        raise InvalidRequest("text: takes an object with format")
    if asked.get("type") not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(
            f"text.format={shown(asked)}: takes type text, json_object, or json_schema with name and schema"
        )
    if asked["type"] != "json_schema":
        return dict(asked)
    if asked.get("schema") is None:
        raise InvalidRequest("text.format: type json_schema takes a JSON Schema in its member schema")
    return {"type": "json_schema", "json_schema": {name: asked[name] for name in asked if name != "type"}}

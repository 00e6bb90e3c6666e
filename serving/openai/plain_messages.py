"""OpenAI's messages as chat templates take them: role and content alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.model_manager.wire.chat_messages import parse_content, parse_messages
from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.decoding import convert
from millrace.model_manager.wire.errors import InvalidRequest

_UNUSED = frozenset(("name", "refusal", "audio", "annotations", "function_call", "reasoning_content"))
"""What messages of earlier answers have, and no template takes."""


class _Called(msgspec.Struct):
    name: str
    arguments: str = ""


class _Call(msgspec.Struct):
    id: str
    function: _Called


def plain_messages(messages: Any, instruction: str = "") -> list[dict[str, str]]:
    """The same conversation; `instruction` is put into its system message. Raises InvalidRequest."""
    if not isinstance(messages, list):
        return parse_messages(messages)
    calls: set[str] = set()
    plain = [
        _plain(f"messages[{index}]", message, calls) if isinstance(message, Mapping) else message
        for index, message in enumerate(messages)
    ]
    parsed = parse_messages(plain)  # before there is one more: errors name a message by its place
    return _instructed(parsed, instruction) if instruction else parsed


def _plain(name: str, message: Mapping[str, Any], calls: set[str]) -> dict[str, Any]:
    """A message of that name; `calls` are the ids of the calls before it, and gets those in it."""
    kept = {key: value for key, value in message.items() if key not in _UNUSED and value is not None}
    if kept.get("role") == "developer":
        kept["role"] = "system"
    if kept.get("role") == "tool":
        return {"role": "user", "content": _result(name, kept, calls)}
    if made := kept.pop("tool_calls", None):
        said = [parse_content(f"{name}.content", kept["content"])] if kept.get("content") else []
        kept["content"] = "\n".join([*said, *_calls(f"{name}.tool_calls", made, calls)])
    return kept


def _result(name: str, message: Mapping[str, Any], calls: set[str]) -> str:
    """What a function gave."""
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in calls:
        said = "nothing" if call_id is None else shown(call_id)
        raise InvalidRequest(f"{name}.tool_call_id: takes the id of a call in an earlier message, got {said}")
    return f"Result of the function: {parse_content(f'{name}.content', message.get('content'))}"


def _calls(name: str, made: Any, calls: set[str]) -> list[str]:
    """Calls in an earlier answer, as tools.py has the model write them."""
    try:
        found = convert(made, list[_Call])
    except msgspec.ValidationError:
        raise InvalidRequest(f"{name}: takes a list of {{id, type, function: {{name, arguments}}}}") from None
    calls |= {each.id for each in found}
    return [_call(each.function) for each in found]


def _call(function: _Called) -> str:
    name = json.dumps(function.name, ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {function.arguments or "{}"}}}'


def _instructed(messages: list[dict[str, str]], instruction: str) -> list[dict[str, str]]:
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{instruction}"}, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]

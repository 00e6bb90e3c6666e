"""OpenAI's messages as chat templates take them: role and content alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from millrace.model_manager.wire.chat_messages import parse_messages

_UNUSED = frozenset(("name", "refusal", "audio", "annotations", "function_call", "reasoning_content"))
"""What messages of earlier answers have, and no template takes."""


def plain_messages(messages: Any, instruction: str = "") -> list[dict[str, str]]:
    """The same conversation; `instruction` is put into its system message. Raises InvalidRequest."""
    if not isinstance(messages, list):
        return parse_messages(messages)
    plain = [_plain(message) if isinstance(message, Mapping) else message for message in messages]
    return parse_messages(_instructed(plain, instruction) if instruction and plain else plain)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if name not in _UNUSED and value is not None}
    if kept.get("role") == "developer":
        kept["role"] = "system"
    if kept.get("role") == "tool":
        return {"role": "user", "content": _result(kept)}
    if calls := kept.pop("tool_calls", None):
        kept["content"] = "\n".join(filter(None, (kept.get("content"), *map(_call, calls))))
    return kept


def _result(message: Mapping[str, Any]) -> Any:
    """What a function gave."""
    content = message.get("content")
    return f"Result of the function: {content}" if isinstance(content, str) else content


def _call(call: Any) -> str:
    """A call in an earlier answer, as tools.py has the model write it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return json.dumps(call)
    return f'{{"name": {json.dumps(function.get("name"))}, "arguments": {function.get("arguments") or "{}"}}}'


def _instructed(messages: list[Any], instruction: str) -> list[Any]:
    first = messages[0]
    if isinstance(first, Mapping) and first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{instruction}"}, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]

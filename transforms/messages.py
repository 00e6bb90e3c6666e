"""Chat messages, checked and with text only. Knows no chat template: that is the model's."""

from __future__ import annotations

from typing import Any

from model_manager.wire.errors import InvalidRequest


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages with their text parts joined; raises InvalidRequest for what no text model takes."""
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("`messages` takes a list of at least one message")
    return [_checked(message, index) for index, message in enumerate(messages)]


def _checked(message: Any, index: int) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"messages[{index}] takes an object with `role` and `content`")
    given = {name: value for name, value in message.items() if value is not None}
    return given | {"content": _text(message.get("content"), index)}


def _text(content: Any, index: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"messages[{index}] has no `content` that is text")
    for part in content:
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InvalidRequest(f"messages[{index}] has a part of type {kind!r}: only text is supported")
    return "".join(part["text"] for part in content)

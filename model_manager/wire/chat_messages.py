"""Chat messages, checked and as plain text. Knows no chat template: that is the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .conversion import shown
from .errors import InvalidRequest

_SHOWN = 80
"""Most characters of names that an error gives."""


def parse_messages(messages: object) -> list[dict[str, str]]:
    """Messages as plain {role, content} pairs; the texts of a content in parts are joined by newlines.

    Raises InvalidRequest, saying which message is wrong and what it takes.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InvalidRequest("messages: takes a list of at least one {role, content}")
    return [_parse_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _parse_message(name: str, message: object) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{name}: takes {{role, content}}, got {_kind(message)}")
    given = {key: value for key, value in message.items() if value is not None}
    if extra := sorted(map(str, given.keys() - {"role", "content"})):
        raise InvalidRequest(f"{name}: takes role and content only, got {', '.join(extra)[:_SHOWN]} too")
    role = given.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{name}.role: takes text such as 'user', got {_kind(role)}")
    return {"role": str(role), "content": parse_content(f"{name}.content", given.get("content"))}


def parse_content(name: str, content: object) -> str:
    """The text of a content, which has this name; raises InvalidRequest."""
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{name}: takes text or a list of text parts, got {_kind(content)}")
    return "\n".join(_parse_part(f"{name}[{index}]", part) for index, part in enumerate(content))


def _parse_part(name: str, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(text := part.get("text"), str):
        return text
    got = f"a part of type {shown(part.get('type'))}" if isinstance(part, Mapping) else _kind(part)
    raise InvalidRequest(f'{name}: takes {{"type": "text", "text": "..."}}, got {got}')


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__

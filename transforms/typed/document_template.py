"""The prompt: what is asked, then examples, then the document. What all documents share comes first, so it is computed
once and then found in the prefix cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from millrace.model_manager.wire.conversion import did_you_mean, nearest
from millrace.model_manager.wire.errors import ConfigError

from .leaves import in_words
from .shapes import Items, Maybe, Piece, Record, Shape

DEFAULT_TEMPLATE = """\
Extract these fields as JSON:
{fields}
{examples}
Document:
{document}
JSON:"""
"""The user's turn; what follows it is the answer."""
_EXAMPLE = "\nDocument:\n{document}\nJSON:{answer}\n"
_PLACES = ("document", "fields", "examples")
_VERY_NEAR = 0.85
"""Other words in braces stand for themselves."""
Template = str | list[dict[str, Any]]
MessageContent = str | list[dict[str, Any]]


def checked_template(template: Template) -> Template:
    """Raises ConfigError unless it is text, or chat messages with text, that says once where the document goes."""
    texts = [template] if isinstance(template, str) else [message.get("content") for message in template]
    if not all(isinstance(text, str) for text in texts) or sum(str(text).count("{document}") for text in texts) != 1:
        raise ConfigError("template: takes text, or chat messages with text, that has {document} in it, once")
    for place in re.findall(r"{(\w+)}", "".join(map(str, texts))):
        near = nearest(place, _PLACES, alike=_VERY_NEAR)
        if near and place not in _PLACES:
            raise ConfigError(f"template: {{{place}}} is no place in it{did_you_mean(f'{{{near}}}')}")
    return template


class Prompts:
    """Makes a document's prompt of a template."""

    def __init__(self, record: Record, examples: Sequence[tuple[str, str]], template: Template) -> None:
        """`examples`: documents and their answers."""
        self._template = checked_template(template)
        shown = "".join(_filled(_EXAMPLE, {"{document}": text, "{answer}": answer}) for text, answer in examples)
        self._shared = {"{fields}": field_lines(record), "{examples}": shown}

    def of(self, document: str) -> MessageContent:
        """A text, for the user's turn where the model has a chat template; else the messages."""
        values = self._shared | {"{document}": document}
        if isinstance(self._template, str):
            return _filled(self._template, values)
        return [{**message, "content": _filled(message["content"], values)} for message in self._template]


def _filled(template: str, values: dict[str, str]) -> str:
    """What is put in is not looked at again."""
    return re.sub("|".join(map(re.escape, values)), lambda place: values[place[0]], template)


def field_lines(record: Record) -> str:
    """The fields, one a line: name, accepted values, description."""
    return "\n".join(_lines(record, ""))


def _lines(record: Record, indent: str) -> Iterator[str]:
    for member in record.in_order:
        words, inner = _described(member.shape)
        asked = f" ({member.question or member.hint})" if member.question or member.hint else ""
        yield f"{indent}- {member.key}: {words}{'' if member.required else ', if there is one'}{asked}"
        if inner is not None:
            yield from _lines(inner, indent + "  ")


def _described(shape: Shape) -> tuple[str, Record | None]:
    """The shape in words, and the record whose fields are to follow, if it has one."""
    if isinstance(shape, Maybe):
        words, inner = _described(shape.shape)
        return f"{words}, or null", inner
    if isinstance(shape, Items):
        words, inner = _described(shape.item)
        return f"list of {words}", inner
    if isinstance(shape, Record):
        return "object", shape
    return ("text from the document" if isinstance(shape, Piece) else in_words(shape)), None

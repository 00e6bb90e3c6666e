"""A prompt made of a row's columns: `Summarize: {text}`, as Python's `str.format` has it, and of a system message.

A place in braces is a column's whole name; `{{` and `}}` are braces. Text stands as it is, other values as JSON.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millrace.model_manager.wire.conversion import did_you_mean, nearest
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest

from .completions import Messages, Prompt

_SHOWN = 10
"""Columns that an error names."""


@functools.cache
def columns_of(template: str) -> tuple[str, ...]:
    """The columns that a template names, each once. Raises ConfigError for a bad template."""
    return tuple(dict.fromkeys(name for _, name in _parts(template) if name is not None))


@functools.cache
def _parts(template: str) -> Sequence[tuple[str, str | None]]:
    """Literal texts, each with the column that follows it, if one does."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(
            f"template={template!r}: {_why_bad(str(error))}: takes {{column}}; a brace is written {{{{ or }}}}"
        ) from None
    for _, name, spec, conversion in parsed:
        if name is None:
            continue
        if not name or name.isdigit():
            raise ConfigError(f"template={template!r}: {{{name}}} names no column: takes {{column}}")
        if spec or conversion:
            shown = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise ConfigError(
                f"template={template!r}: {{{shown}}} has a format: takes a column's name alone, {{{name}}}"
            )
    if not any(name for _, name, _, _ in parsed):
        raise ConfigError(f"template={template!r}: has no column in braces: takes a text such as 'Summarize: {{text}}'")
    return [(literal, name) for literal, name, _, _ in parsed]


def _why_bad(parsers: str) -> str:
    """Why a template is bad, in words of templates; Python's own words are about format strings."""
    alone = re.match(r"Single '([{}])'|expected '(})'", parsers)
    return f"a {alone[1] or '{'} stands without its pair" if alone else parsers


def filled(template: str, row: Mapping[str, Any]) -> str:
    """The prompt of a row. Raises InvalidRequest for a column that the row lacks, or that is null."""
    return "".join(literal + ("" if name is None else _value(name, row)) for literal, name in _parts(template))


def _value(name: str, row: Mapping[str, Any]) -> str:
    value = row.get(name)
    if value is None:
        raise InvalidRequest(_why_none(name, row))
    try:
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"`{name}`, which the template names: takes what JSON has: {error}") from None


def _why_none(name: str, row: Mapping[str, Any]) -> str:
    if name in row:
        return f"`{name}`, which the template names, is null in the row"
    near = nearest(name, list(row))
    hint = did_you_mean(f"`{near}`" if near else None)
    shown = ", ".join(f"`{each}`" for each in list(row)[:_SHOWN]) or "none"
    return f"no `{name}`, which the template names, in the row (its columns: {shown}){hint}"


def with_system(prompt: Prompt, system: str | None) -> str | Messages | list[int]:
    """The prompt's content with a system message first, unless its messages have one. Raises InvalidRequest."""
    if system is None:
        return prompt.content
    if prompt.token_ids is not None:
        raise InvalidRequest("a system message goes with text or messages, not with token ids")
    messages = prompt.messages or [{"role": "user", "content": prompt.text}]
    has_one = messages[0]["role"] == "system"
    return messages if has_one else [{"role": "system", "content": system}, *messages]

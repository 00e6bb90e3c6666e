"""A row of a file → a Prompt. Knows the shapes of rows, not the formats of files.

Three shapes of row, recognised in this order:

1. OpenAI's batch format: an object with `body`, and `custom_id` or `url`, and no prompt beside it: see openai_batch.py.
2. An object with the prompt column (a string, a list of token ids, or a list of messages), or with `messages`.
3. A bare JSON string.

Of an object these names are ours, everything else is a further column and is passed through unchanged:

- the id column, `id` by default, else `custom_id`: a string or an integer,
- the prompt column, `prompt` by default, or `messages`; of documents `text`, `document`, `prompt`; with a template
  (prompt_template.py) no column is, and those that it names are passed through too,
- SamplingParams' own field names (max_tokens, temperature, logit_bias, …: docs/reference/sampling.md lists them) and
  `sampling_params`, an object of them that wins over the former, or a text that is its JSON, as `constraint` may be;
  `row_params=False` leaves all of these to the columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.model_manager.wire.chat_messages import parse_messages
from millrace.model_manager.wire.constraint import fields_of
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest
from millrace.model_manager.wire.json_text import from_text
from millrace.model_manager.wire.sampling import SamplingParams

from . import openai_batch
from .completions import Messages, Prompt
from .prompt_template import columns_of, filled

MAX_DEPTH = 100
SAMPLING_NAMES = frozenset(SamplingParams.__struct_fields__)
NESTED_PARAMS = "sampling_params"
CONSTRAINTS = ("constraint", "response_format", NESTED_PARAMS)
"""What has a constraint in it, as an object or as a text that is JSON."""
_FLAT = frozenset({str, int, float, bool, type(None)})


class RowShape(msgspec.Struct, frozen=True, kw_only=True):
    """Which columns of a row are which. Raises ConfigError for a template that is none, or beside a prompt column."""

    template: str | None = None
    """Makes the prompt of the row's columns."""
    prompt_column: str | None = None
    """Column that holds the prompt. Default: the one of `default_columns` that the row has."""
    documents: bool = False
    """Whether what a row has is a document, and no prompt."""
    id_column: str | None = None
    """Column that holds the row's id. Default: `id`, else `custom_id`."""
    row_params: bool = True
    """Whether sampling parameters are taken from the row."""

    def __post_init__(self) -> None:
        if self.template is not None:
            columns_of(self.template)
            if self.prompt_column:
                raise ConfigError("template and prompt_column exclude each other: a template names its columns itself")

    @property
    def default_columns(self) -> tuple[str, ...]:
        """Columns that the prompt may be in by default."""
        return (
            ()
            if self.template is not None
            else ("text", "document", "prompt")
            if self.documents
            else ("prompt", "messages")
        )

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """Columns that the prompt may be in: the named one, or the default ones. With a template, all of its."""
        if self.template is not None:
            return columns_of(self.template)
        return (self.prompt_column,) if self.prompt_column else self.default_columns

    @property
    def wanted(self) -> str:
        """What a value of the prompt column may be, in words."""
        return "a document, which is text" if self.documents else "a string, a list of messages or of token ids"


def parse_row(row: Any, shape: RowShape, *, position: str, original: str | None = None) -> Prompt:
    """The prompt of a decoded row; `position` (file and place) is its id where it has none. Raises InvalidRequest."""
    if isinstance(row, str):
        return text_prompt(row, shape, position=position, original=original)
    check_depth(row)
    if not isinstance(row, dict):
        raise InvalidRequest(f"a row is an object or a string, not {_json_type(row)}")
    rest = dict(row)
    if endpoint := batch_endpoint(row, shape):
        rest, shape = openai_batch.plain_row(row), msgspec.structs.replace(shape, prompt_column=None)
    identity = take_id(rest, shape) or position
    content = _take_content(rest, shape) if shape.template is None else {"text": filled(shape.template, row)}
    params = take_params(rest) if shape.row_params else {}
    if endpoint:
        rest |= openai_batch.beside(row)
    return Prompt(
        id=identity, params=params, columns=rest, source=position, endpoint=endpoint, original=original, **content
    )


def batch_endpoint(row: Any, shape: RowShape) -> str:
    """OpenAI's endpoint of a row in its batch format; empty for other rows."""
    may_be = isinstance(row, dict) and shape.template is None and not shape.documents
    return openai_batch.endpoint_of(row) if may_be and openai_batch.is_batch_row(row, shape.prompt_column) else ""


def text_prompt(text: str, shape: RowShape, *, position: str, original: str | None = None) -> Prompt:
    """The prompt of a row that is text alone; for a template it is the column `text`, and `prompt`."""
    if shape.template is not None:
        original = original or json.dumps(text)
        text = filled(shape.template, {"text": text, "prompt": text})
    check_text(text, shape)
    return Prompt(id=position, text=text, source=position, original=original)


def document_wanted(shape: RowShape) -> str:
    """What an element may be that is a document, in words."""
    *others, last = (f"`{name}`" for name in shape.prompt_columns)
    return (
        f"a document: text, a Prompt of text, or a mapping with it as {', '.join(others)}{' or ' * bool(others)}{last}"
    )


def check_text(text: str, shape: RowShape, name: str = "the document") -> None:
    """Raises InvalidRequest for a document that is empty."""
    if shape.documents and not text:
        raise InvalidRequest(f"{name} is empty")


def check_row_types(row: Mapping[str, Any], shape: RowShape) -> None:
    """Raises InvalidRequest where the prompt column of a table has values that JSON has not: bytes, decimals, dates."""
    for name in () if shape.template is not None else shape.prompt_columns:
        if not isinstance(row.get(name), str | list | dict | int | float | None):
            raise InvalidRequest(f"`{name}` is {_json_type(row[name])}: takes {shape.wanted}")


def check_depth(value: Any) -> None:
    """Raises InvalidRequest for values nested deeper than 100: what encodes elements recurses."""
    if too_deep(value):
        raise InvalidRequest(f"nested deeper than {MAX_DEPTH} levels")


def too_deep(value: Any) -> bool:
    """Whether objects and lists are nested deeper than 100."""
    if isinstance(value, dict) and _FLAT.issuperset(map(type, value.values())):  # as most rows are
        return False
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        nested = [each for each in level if isinstance(each, dict | list)]
        level = [inner for each in nested for inner in (each.values() if isinstance(each, dict) else each)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def given_id(row: Any, shape: RowShape) -> str:
    """The id that a row has of its own, though it may be bad otherwise; empty where it has none."""
    try:
        return take_id(dict(row), shape) if isinstance(row, dict) else ""
    except InvalidRequest:
        return ""


def take_id(rest: dict[str, Any], shape: RowShape) -> str:
    """Take the columns of ids out of the row, up to the first that has one, which is returned; else empty."""
    for name in (shape.id_column,) if shape.id_column else ("id", "custom_id"):
        value = rest.pop(name, None)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise InvalidRequest(f"`{name}` is {_json_type(value)}: takes a string or an integer")
            return str(value)
    return ""


def _take_content(rest: dict[str, Any], shape: RowShape) -> dict[str, Any]:
    kind = "text" if shape.documents else "prompt"
    named = shape.prompt_columns
    found = [name for name in named if rest.get(name) is not None]
    if not found and named[0] in rest:
        raise InvalidRequest(f"`{named[0]}` is null: takes {shape.wanted}")
    if not found:
        wanted = " or ".join(f"`{name}`" for name in named)
        columns = ", ".join(f"`{name}`" for name in list(rest)[:10]) or "none"
        setting = f"{kind}_column (--{kind}_column)"
        hint = f"{setting} names none of them" if shape.prompt_column else f"name the {kind} column in {setting}"
        raise InvalidRequest(f"no {wanted} in the row (its columns: {columns}): {hint}")
    if len(found) > 1:
        both = " and ".join(f"`{name}`" for name in found[:2])
        raise InvalidRequest(f"both {both} in the row: name one of them in {kind}_column (--{kind}_column)")
    for name in named:
        if name != found[0]:
            rest.pop(name, None)
    return _content(found[0], rest.pop(found[0]), shape)


def _content(name: str, value: Any, shape: RowShape) -> dict[str, Any]:
    if isinstance(value, str):
        check_text(value, shape, f"`{name}`")
        return {"text": value}
    if shape.documents:
        raise InvalidRequest(f"`{name}` is {_json_type(value)}: takes {shape.wanted}")
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return {"token_ids": value}
    if isinstance(value, list):
        messages: Messages = [*parse_messages(value)]
        return {"messages": messages}
    raise InvalidRequest(f"`{name}` is {_json_type(value)}: takes {shape.wanted}")


def take_params(rest: dict[str, Any]) -> dict[str, Any]:
    """Take the sampling parameters out of the row, and check them. Raises InvalidRequest."""
    nested = rest.pop(NESTED_PARAMS, None)
    if nested is None and SAMPLING_NAMES.isdisjoint(rest):
        return {}
    own = {name: rest.pop(name) for name in SAMPLING_NAMES.intersection(rest)}
    if isinstance(nested, str):
        nested = from_text(NESTED_PARAMS, nested)
    if nested is not None and not isinstance(nested, Mapping):
        raise InvalidRequest(f"`{NESTED_PARAMS}` is {_json_type(nested)}: takes an object")
    params = {name: value for name, value in (own | dict(nested or {})).items() if value is not None}
    if isinstance(params.get("constraint"), str):
        params["constraint"] = fields_of(params["constraint"])
    SamplingParams.parse(params)
    return dict(sorted(params.items()))


def _json_type(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(value)) or f"a value of type {type(value).__name__}"

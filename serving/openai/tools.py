"""Tools: functions that an answer may call. A call is JSON that a constraint holds to the function's parameters.

The functions are described in a system message, not by the model's own template, so every model that chats can call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.decoding import convert
from millrace.model_manager.wire.errors import InvalidRequest

from ..requests.ids import new_id

Way = Literal["none", "auto", "required", "named"]
MAX_TOOLS = 128
"""OpenAI's limit."""
_BEGINS = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\S)', re.DOTALL)
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_TEXT = r"TEXT: /[^{](.|\n)*/"


class Function(msgspec.Struct, frozen=True):
    """A function as OpenAI's tools describe it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool; there are no others than functions."""

    type: Literal["function"]
    function: Function


@dataclass(frozen=True)
class Calling:
    """What an answer may call, and must."""

    functions: Sequence[Function] = ()
    way: Way = "none"

    @property
    def named(self) -> str | None:
        """The one function that the answer must call."""
        return self.functions[0].name if self.way == "named" else None

    def constraint(self) -> dict[str, Any] | None:
        """The constraint's fields."""
        if self.way == "none":
            return None
        if self.way == "named":
            return {"json_schema": _parameters(self.functions[0])}
        schema = _call_schema(self.functions)
        if self.way == "required":
            return {"json_schema": schema}
        return {"grammar": f"start: TEXT | call\n{_TEXT}\ncall: %json {json.dumps(schema)}"}

    def instruction(self) -> str:
        """What the model is told of the functions."""
        listed = "\n".join(map(_told, self.functions))
        if self.way == "named":
            return f"Answer with the arguments of this function, as JSON:\n{listed}"
        call = '{"name": NAME, "arguments": {…}}'
        when = "Call one of these functions" if self.way == "required" else "You may call one of these functions"
        return f"{when}; a call is the JSON {call} and nothing else:\n{listed}"


def calling_of(tools: list[Any], choice: Any) -> Calling:
    """What `tools` and `tool_choice` say; raises InvalidRequest, which names the field."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools: takes at most {MAX_TOOLS} functions, got {len(tools)}")
    try:
        functions = [tool.function for tool in convert(tools, list[Tool])]
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"tools: {str(error)[0].lower()}{str(error)[1:]}") from None
    _check_names([each.name for each in functions])
    if choice is None:
        choice = "auto" if functions else "none"
    if choice == "none" or (choice == "auto" and not functions):
        return Calling()
    if choice in ("auto", "required"):
        if not functions:
            raise InvalidRequest(f"tool_choice={shown(choice)}: takes tools beside it")
        return Calling(functions, choice)
    name = choice.get("function") if isinstance(choice, Mapping) else None
    name = name.get("name") if isinstance(name, Mapping) else None
    found = [each for each in functions if each.name == name]
    if not found:
        raise InvalidRequest("tool_choice: takes none, auto, required, or a function of tools by its name")
    return Calling(found[:1], "named")


def _check_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise InvalidRequest(f"tools[{index}].function.name={shown(name)}: takes a name that no other tool has")
        seen.add(name)


def _told(function: Function) -> str:
    """A function as the model is told of it: its letters are as they were sent, not escapes."""
    told = {"name": function.name, "description": function.description or "", "parameters": _parameters(function)}
    return json.dumps(told, ensure_ascii=False)


def _parameters(function: Function) -> dict[str, Any]:
    return function.parameters or _NO_PARAMETERS


def _call_schema(functions: Sequence[Function]) -> dict[str, Any]:
    """A call of one of the functions. Their schemas stand under $defs, and what refers within them is moved along."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": each.name}, "arguments": {"$ref": f"#/$defs/f{index}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for index, each in enumerate(functions)
    ]
    try:
        moved = {f"f{index}": _moved(_parameters(each), f"#/$defs/f{index}") for index, each in enumerate(functions)}
    except RecursionError:
        raise InvalidRequest("tools: a function's parameters are nested too deep") from None
    return {"anyOf": calls, "$defs": moved}


def _moved(schema: Any, to: str) -> Any:
    if isinstance(schema, list):
        return [_moved(each, to) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: to + value[1:] if name == "$ref" and isinstance(value, str) and value[:1] == "#" else _moved(value, to)
        for name, value in schema.items()
    }


class CallText:
    """Reads a call as it is generated: the function's name, then the text of its arguments, piece by piece."""

    def __init__(self, calling: Calling) -> None:
        self._named = calling.named
        self._is_optional = calling.way == "auto"
        self._text = ""
        self._given = 0
        self._arguments_at: int | None = 0 if self._named else None
        self.call_id = new_id("call_")
        self.name = self._named
        """The function's name, once it is known."""

    @property
    def is_call(self) -> bool:
        """Whether the text is a call, as far as it is there; with auto any other text is an answer."""
        return not self._is_optional or self._text[:1] == "{"

    @property
    def nameless(self) -> str:
        """The text of a call whose name is not there; of any other text nothing."""
        return self._text if self.is_call and self.name is None else ""

    def add(self, text: str) -> str:
        """The next part of the arguments that a further part of the text gives."""
        self._text += text
        if self._arguments_at is None:
            begun = _BEGINS.match(self._text)
            if begun is None:
                return ""
            self.name, self._arguments_at = json.loads(begun[1]), begun.end()
        return self._until(self._settled())

    def end(self, *, is_cut: bool = False) -> str:
        """What is left of the arguments, once nothing more comes; of a call that is cut, all braces are theirs."""
        if self._arguments_at is None:
            return ""
        return self._until(len(self._text) if is_cut else self._end())

    def _until(self, end: int) -> str:
        assert self._arguments_at is not None, "arguments have begun"
        arguments = self._text[self._arguments_at : max(end, self._arguments_at)]
        new, self._given = arguments[self._given :], max(self._given, len(arguments))
        return new

    def _settled(self) -> int:
        """Where the arguments end for sure: the last braces may belong to the call around them."""
        return len(self._text) if self._named else len(self._text.rstrip("} \t\r\n"))

    def _end(self) -> int:
        if self._named:
            return len(self._text)
        whole = self._text.rstrip()
        return len(whole) - 1 if whole.endswith("}") else len(whole)

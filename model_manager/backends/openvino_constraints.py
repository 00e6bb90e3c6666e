"""Constraints in OpenVINO's own form, and which of them it gets: plain ones, and no others.

xgrammar, which holds OpenVINO's outputs, reads some regular expressions and JSON Schemas wrongly. Others it refuses in
the middle of a step, and the pipeline answers nobody after that. So what is not known to work is refused here, and
`meets` looks at each whole output. Knows no request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from llguidance import LLTokenizer

from ..grammars.compiling import is_output
from ..grammars.token_bytes import load_tokenizer
from ..wire.constraint import Constraint
from ..wire.errors import InvalidRequest, ModelUnsupported

_MOST = 1000
"""The largest number of repetitions, of items and of characters that is handed on."""
_ATOM = r"""
    \\[dws.\-+*?()\[\]{}|/\\]
  | \[ (?: [A-Za-z0-9]-[A-Za-z0-9] | [A-Za-z0-9\ _,.:;/+*%\#@=!<>&'"] | \\[dws\]\[\\\-^] )+ \]
  | [A-Za-z0-9\ _,:;/%\#@=!<>&'"~\-]
"""
_REGEX = re.compile(
    rf"(?P<atom>{_ATOM})|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)|(?P<times>[?*+]|\{{\d+(?:,\d*)?\}})",
    re.VERBOSE,
)
_AFTER = {
    "start": "atom open",
    "open": "atom open",
    "bar": "atom open",
    "atom": "atom open close bar times end",
    "close": "atom open close bar times end",
    "times": "atom open close bar end",
}
"""Which part of a regular expression may follow which: no empty alternative, no lazy repetition."""
_NAME = re.compile(r"[A-Za-z0-9 _.\-]{1,64}")
_REFERENCE = re.compile(r"#/(?:\$defs|definitions)/[A-Za-z0-9_.\-]{1,64}")
_SAYS_NOTHING = frozenset(("title", "description", "$schema", "default", "examples"))
_COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength"))
_BOUNDS = frozenset(("minimum", "maximum"))


class CheckedOutputs:
    """Whole outputs of one model, looked at by their constraints."""

    def __init__(self, folder: Path, vocab_size: int, eos: list[int]) -> None:
        self._load = partial(load_tokenizer, folder, vocab_size, eos)
        self._tokenizer: LLTokenizer | None = None

    def prepare(self) -> None:
        """Load the tokenizer, once; raises InvalidRequest where constraints do not support its kind."""
        if self._tokenizer is None:
            try:
                self._tokenizer = self._load()
            except ModelUnsupported as error:
                raise InvalidRequest(f"constraint: {error}") from None

    def meet(self, constraint: Constraint, token_ids: list[int]) -> bool:
        """Whether the output meets its constraint."""
        self.prepare()
        assert self._tokenizer is not None
        return meets(constraint, self._tokenizer.decode_bytes(token_ids))


def structured(genai: Any, constraint: Constraint) -> Any:
    """The constraint as a StructuredOutputConfig; raises InvalidRequest for one that OpenVINO does not hold."""
    if fault := _fault(constraint):
        raise InvalidRequest(f"constraint.{constraint.kind}: OpenVINO does not hold {fault}; the back end torch does")
    if constraint.regex is not None:
        return genai.StructuredOutputConfig(regex=constraint.regex)
    if constraint.choice is not None:
        choices = " | ".join(msgspec.json.encode(each).decode() for each in constraint.choice)
        return genai.StructuredOutputConfig(grammar=f"root ::= {choices}")
    schema = {} if constraint.json_schema is None else constraint.json_schema
    return genai.StructuredOutputConfig(json_schema=msgspec.json.encode(schema).decode())


def meets(constraint: Constraint, output: bytes) -> bool:
    """Whether a whole output meets its constraint; JSON may have white space between its parts."""
    if constraint.kind not in ("json", "json_schema"):
        return is_output(constraint, output)
    try:
        return is_output(constraint, msgspec.json.encode(msgspec.json.decode(output)))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _fault(constraint: Constraint) -> str | None:
    """What of the constraint is not handed on."""
    if constraint.regex is not None:
        return _regex_fault(constraint.regex)
    if constraint.choice is not None:
        return next((f"the choice {each!r}" for each in constraint.choice if not each.isprintable()), None)
    if isinstance(constraint.json_schema, dict):
        return next(_schema_faults(constraint.json_schema), None)
    return None


def _regex_fault(regex: str) -> str | None:
    """The first part of a regular expression that is not handed on, with its place."""
    at, depth, last = 0, 0, "start"
    while at < len(regex):
        part = _REGEX.match(regex, at)
        kind = part.lastgroup if part else None
        depth += (kind == "open") - (kind == "close")
        if part is None or kind is None or kind not in _AFTER[last].split() or depth < 0 or _is_long(part[0]):
            return f"{regex[at : at + 8]!r} at character {at} of the regular expression"
        at, last = part.end(), kind
    return None if "end" in _AFTER[last] and not depth else "the end of the regular expression"


def _is_long(repetition: str) -> bool:
    return repetition.startswith("{") and any(int(each) > _MOST for each in re.findall(r"\d+", repetition))


def _schema_faults(schema: Any) -> Iterator[str]:
    """What of a JSON Schema is not handed on."""
    if not isinstance(schema, dict):
        yield f"the schema {schema!r}"
        return
    for key, value in schema.items():
        yield from _key_faults(key, value)


def _key_faults(key: str, value: Any) -> Iterator[str]:
    match key:
        case "type" | "required":
            if not all(isinstance(each, str) for each in (value if isinstance(value, list) else [value])):
                yield f"{key}={value!r}"
        case "properties" | "$defs" | "definitions":
            for name, part in value.items():
                if not _NAME.fullmatch(name):
                    yield f"the name {name!r}"
                yield from _schema_faults(part)
        case "items":
            yield from _schema_faults(value)
        case "anyOf":
            for part in value:
                yield from _schema_faults(part)
        case "enum" | "const":
            if not all(_is_plain(each) for each in (value if key == "enum" else [value])):
                yield f"{key}={value!r}"
        case "pattern":
            if fault := _regex_fault(value):
                yield f"pattern: {fault}"
        case "$ref":
            if not _REFERENCE.fullmatch(value):
                yield f"$ref={value!r}"
        case "additionalProperties":
            if not isinstance(value, bool):
                yield "additionalProperties with a schema"
        case _ if key in _COUNTS or key in _BOUNDS:
            if not isinstance(value, int) or (key in _COUNTS and value > _MOST):
                yield f"{key}={value!r}"
        case _ if key not in _SAYS_NOTHING:
            yield f"the keyword {key}"


def _is_plain(value: Any) -> bool:
    """Whether it is null, a truth value, an integer or text without control characters, quotes and backslashes."""
    if isinstance(value, str):
        return value.isprintable() and not set(value) & set('"\\')
    return value is None or isinstance(value, int)

"""The bodies of requests: what each route takes, read from JSON and checked. Sampling parameters are read by
wire/openai_parameters.py; prompts by prompts.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from millrace.model_manager.wire.conversion import converted
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.openai_parameters import NO_EFFECT, PARAMETERS, RIDE_ALONG, check_unsupported

from ..http.http_errors import HttpError
from .body_size import check_values

_Body = TypeVar("_Body", bound="Body")
_MOST_NAMED = 20
_LONGEST_NAME = 40
_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
"""The first of a pair of escapes, without its second."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an answer is streamed. Null is false."""

    include_usage: bool | None = None
    """Give the usage of the whole request in a last chunk, without choices."""
    continuous_usage_stats: bool | None = None
    """Give the usage so far in every chunk."""
    include_obfuscation: bool | None = None
    """No effect: chunks are not padded."""


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What every route takes."""

    model: str | None = None
    """Name of the served model, or of one of its adapters (--adapters)."""


class GenerationBody(Body, frozen=True, kw_only=True):
    """What both routes that generate take, beside sampling parameters."""

    stream: bool = False
    """Send the answer as server-sent events, as it is generated."""
    stream_options: StreamOptions | None = None
    """How it is streamed."""
    skip_special_tokens: bool = True
    """Special tokens are no part of the text; takes true."""
    prompt_logprobs: int | None = None
    """Give the log-probabilities of the prompt's tokens."""


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """`/v1/completions`."""

    prompt: Any = msgspec.field()
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    echo: bool = False
    """Put the prompt before each answer."""
    best_of: int | None = None
    """Takes the value of n."""


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """`/v1/chat/completions`."""

    messages: Any = msgspec.field()
    """The conversation: objects of role and content, a text or a list of text parts."""
    tools: list[Any] = []
    """Functions that the answer may call, at most 128."""
    tool_choice: Any = None
    """none, auto (by default, if there are tools), required, or a function by its name."""
    parallel_tool_calls: bool = True
    """No effect: an answer has one call."""


class EmbeddingBody(Body, frozen=True, kw_only=True):
    """`/v1/embeddings`."""

    input: Any = msgspec.field()
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    encoding_format: Literal["float", "base64"] = "float"
    """Vectors as numbers, or as base64 of little-endian float32."""
    dimensions: int | None = None
    """Takes the model's own size."""
    priority: int = 0
    """Requests of a lower number run first."""
    cache_salt: str = ""
    """Prompts of different salts share no cached keys and values."""


class TokenizeBody(Body, frozen=True, kw_only=True):
    """`/tokenize`."""

    prompt: str | None = None
    """A text."""
    messages: Any = None
    """A conversation, in the place of a text."""
    add_special_tokens: bool = True
    """Add the tokens that the model expects around a text."""


class DetokenizeBody(Body, frozen=True, kw_only=True):
    """`/detokenize`."""

    tokens: list[int] = msgspec.field()
    """Token ids, as many as a prompt may have."""


def decoded(body: bytes | bytearray) -> dict[str, Any]:
    """The object in a body, without nulls; raises HttpError (400, or 413 for too many values)."""
    check_values(body)
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise HttpError(400, f"the body is not JSON: {why_no_json(error, body)}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise HttpError(400, "the body is not a JSON object", code="invalid_json")
    return {name: value for name, value in found.items() if value is not None}


def why_no_json(error: Exception, body: bytes | bytearray) -> str:
    """What is wrong, also where the decoder's own words do not say it."""
    if isinstance(error, RecursionError):
        return "arrays and objects are nested too deep"
    if half := _HALF.search(body):
        return f"{half[0].decode()} is one half of a character, without the other"
    return str(error)


def read(fields: Mapping[str, Any], kind: type[_Body]) -> _Body:
    """The fields that a route takes. Raises InvalidRequest for one of a wrong type, or one that changes the answer and
    is not supported.
    """
    for name in _without_effect(kind) & fields.keys():
        check_unsupported(name, fields[name])
    own = {name: fields[name] for name in kind.__struct_fields__ if name in fields}
    found = converted(own, kind, InvalidRequest, what="field")
    if isinstance(found, GenerationBody):
        _check_generation(found)
    return found


def _check_generation(body: GenerationBody) -> None:
    if not body.skip_special_tokens:
        raise InvalidRequest("skip_special_tokens=False: takes true; special tokens are no part of a text")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options: takes stream=true beside it")


def ignored(fields: Mapping[str, Any], kind: type[Body]) -> dict[str, str]:
    """The header that names the fields which changed nothing; empty where there is none."""
    known = _known(kind)
    return {} if fields.keys() <= known else ignored_header(fields.keys() - known)


@cache
def _without_effect(kind: type[Body]) -> frozenset[str]:
    return frozenset(NO_EFFECT.keys() - {*kind.__struct_fields__})


@cache
def _known(kind: type[Body]) -> frozenset[str]:
    known = {*kind.__struct_fields__, *RIDE_ALONG, *NO_EFFECT}
    return frozenset(known | PARAMETERS if issubclass(kind, GenerationBody) else known)


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The header that names these fields; empty where there is none."""
    named = sorted(names)[:_MOST_NAMED]
    return {"x-millrace-ignored": ", ".join(map(_printable, named))} if named else {}


def _printable(name: str) -> str:
    """The name as a header can hold it."""
    return "".join(each if " " < each <= "~" and each != "," else "?" for each in name[:_LONGEST_NAME])

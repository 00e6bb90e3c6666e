"""Rows in OpenAI's batch format, `{"custom_id", "method", "url", "body"}`, as plain rows.

Source: https://platform.openai.com/docs/guides/batch. Chat completions (`messages`) and completions (`prompt`).
The sampling parameters that vLLM's server adds are taken too, `logprobs` and `top_logprobs` of both endpoints, and
`response_format`, whose schema is always enforced (`strict` or not).
A body parameter that would change the answer and that is not supported raises InvalidRequest by its name: none is
dropped silently. `model` is not used (the job's model answers) and is passed through, as are `method`, `url` and the
parameters that do not change the answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.model_manager.wire.constraint import unwrapped
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.json_text import from_text
from millrace.model_manager.wire.sampling import SamplingParams, nearest_parameter

CHAT_URL = "/v1/chat/completions"
_URLS = (CHAT_URL, "/v1/completions")
_OTHERWISE = ("max_tokens", "logprobs", "prompt_logprobs")
"""Parameters that this format has in another form, or not at all."""
_PARAMETERS = tuple(name for name in SamplingParams.__struct_fields__ if name not in _OTHERWISE)
_NAMES = frozenset((*SamplingParams.__struct_fields__, "sampling_params"))
_SHOWN = 80
_LENGTHS = ("max_completion_tokens", "max_tokens")
_LOGPROBS = ("logprobs", "top_logprobs")
_FORMAT = "response_format"
_CONTENT = ("messages", "prompt")
_RIDE_ALONG = frozenset(
    ("model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "stream_options")
)
OF_THE_REQUEST = _RIDE_ALONG | {"method", "url"}
"""Columns of a plain row that the request had for the service."""
_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "stream": (False,),
    "echo": (False,),
    "tools": ([],),
    "functions": ([],),
    "modalities": (["text"],),
    "suffix": ("",),
}
"""Values of otherwise unsupported parameters that change nothing, beside null."""


def is_batch_row(row: dict[str, Any], prompt_column: str | None = None) -> bool:
    """Whether the row is of this format: it has a body, which may be none that is taken, and no prompt beside it."""
    beside = any(row.get(name) is not None for name in (prompt_column, *_CONTENT) if name)
    if beside or "body" not in row:
        return False
    return "custom_id" in row or ("url" in row if isinstance(row["body"], dict) else row.get("url") in _URLS)


def endpoint_of(row: dict[str, Any]) -> str:
    """The endpoint that a row of this format names, or else means."""
    body = row["body"]
    return str(row.get("url") or _URLS[isinstance(body, dict) and "messages" not in body])


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """The same request as a plain row: custom_id, prompt or messages, sampling parameters, further columns.

    Only the body's parameters are the request's: what has the name of one beside it is none, see `beside`.
    """
    body = row["body"]
    if not isinstance(body, dict):
        raise InvalidRequest(f"body={msgspec.json.encode(body).decode()[:_SHOWN]}: takes an object")
    _check_endpoint(row)
    supported = {*_CONTENT, *_PARAMETERS, *_RIDE_ALONG, *_LENGTHS, *_LOGPROBS, _FORMAT}
    for name in sorted(body.keys() - supported):
        _check_unsupported(name, body[name])
    rest = {name: value for name, value in row.items() if name != "body" and name not in _NAMES}
    rest |= {name: body[name] for name in _RIDE_ALONG & body.keys()}
    params = {name: body[name] for name in _PARAMETERS if body.get(name) is not None}
    params |= _max_tokens(body) | _logprobs(body) | _constraint(body)
    content = {name: body[name] for name in _CONTENT if name in body}
    return rest | content | ({"sampling_params": params} if params else {})


def beside(row: dict[str, Any]) -> dict[str, Any]:
    """Columns beside the body that have names of sampling parameters, and ride along."""
    return {name: row[name] for name in row if name in _NAMES}


def _check_endpoint(row: dict[str, Any]) -> None:
    if row.get("method") not in (None, "POST"):
        raise InvalidRequest(f"method={row['method']!r}: takes POST")
    if row.get("url") is not None and row["url"] not in _URLS:
        raise InvalidRequest(f"url={row['url']!r}: takes {' or '.join(_URLS)}")


def _check_unsupported(name: str, value: Any) -> None:
    harmless = any(
        value == default and (value is default or default is not False) for default in _NO_EFFECT.get(name, ())
    )
    if value is not None and not harmless:
        meant = nearest_parameter(name)
        raise InvalidRequest(f"body.{name} is not supported" + (f": did you mean {meant}?" if meant else ""))


def _max_tokens(body: dict[str, Any]) -> dict[str, Any]:
    values = [body[name] for name in _LENGTHS if body.get(name) is not None]
    return {"max_tokens": values[0]} if values else {}


def _logprobs(body: dict[str, Any]) -> dict[str, Any]:
    """Chat completions ask by `logprobs: true` and say how many alternatives apart; completions ask by their number."""
    asked, most = body.get("logprobs"), body.get("top_logprobs")
    if most is not None and asked is not True and (most != 0 or asked is not None):
        raise InvalidRequest(f"body.top_logprobs={most!r}: takes a number beside logprobs=true")
    if asked is None or asked is False:
        return {}
    return {"logprobs": (most or 0) if asked is True else asked}


def _constraint(body: dict[str, Any]) -> dict[str, Any]:
    """What `response_format` says of the answer: any text, any JSON object, or JSON of a schema."""
    asked = body.get(_FORMAT)
    if isinstance(asked, str):
        asked = from_text(f"body.{_FORMAT}", asked)
    kind = asked.get("type") if isinstance(asked, dict) else None
    if asked is None or (kind == "text" and len(asked) == 1):
        return {}
    if body.get("constraint") is not None:
        raise InvalidRequest(f"body.{_FORMAT}: takes nothing beside body.constraint")
    if kind == "json_object" and len(asked) == 1:
        return {"constraint": {"json_schema": {"type": "object"}}}
    if kind == "json_schema":
        return {"constraint": {"json_schema": _schema(asked)}}
    raise InvalidRequest(f"body.{_FORMAT}={asked!r}: takes type text, json_object, or json_schema with json_schema")


def _schema(asked: dict[str, Any]) -> Any:
    """The schema itself, which OpenAI wraps with a name, a description and whether it is to be strict."""
    named = asked.get("json_schema")
    if not isinstance(named, dict) or named.get("schema") is None:
        raise InvalidRequest(f"body.{_FORMAT}.json_schema: takes an object with the schema as its schema")
    for name in named.keys() - {"name", "description", "schema", "strict"}:
        raise InvalidRequest(f"body.{_FORMAT}.json_schema.{name} is not supported")
    return unwrapped(named)

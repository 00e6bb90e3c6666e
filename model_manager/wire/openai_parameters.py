"""Parameters of OpenAI's requests (completions and chat completions) as sampling parameters of ours.

Rows of OpenAI's batch format and requests of `millrace serve` pass here. Sampling parameters that vLLM adds are taken
too, its structured outputs among them, `logprobs` and `top_logprobs` of both endpoints, and `response_format`, whose
schema is always enforced (`strict` or not).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .constraint import unwrapped
from .conversion import did_you_mean, shown
from .errors import InvalidRequest
from .json_text import from_text
from .sampling import SamplingParams, nearest_parameter

_OTHERWISE = ("max_tokens", "logprobs", "prompt_logprobs", "seed")
"""Parameters that OpenAI's requests have in another form, or not at all."""
_PLAIN = tuple(name for name in SamplingParams.__struct_fields__ if name not in _OTHERWISE)
_LENGTHS = ("max_completion_tokens", "max_tokens")
_FORMAT = "response_format"
_ANY_TEXT = {"type": "text"}
_GUIDED = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Kinds of constraints by vLLM's older names, each a parameter of its own."""
_STRUCTURED = "structured_outputs"
_KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar", "json_object": "json"}
"""Kinds of constraints by the names that vLLM's `structured_outputs` has for them."""
_VLLM_FLAGS = frozenset(("json_object", "disable_fallback", "disable_any_whitespace", "disable_additional_properties"))
"""Members of `structured_outputs` whose default is false."""


class BesideSampling(msgspec.Struct, frozen=True, kw_only=True):
    """What `sampling_fields` reads beside, or otherwise than, the fields of SamplingParams; it checks their values."""

    max_tokens: int | None = None
    """Most tokens to generate, ≥ 1."""
    max_completion_tokens: int | None = None
    """Most tokens to generate, ≥ 1; comes before max_tokens."""
    seed: int | None = None
    """The same seed gives the same random numbers, -2**63 to 2**63 - 1; a negative one is that seed plus 2**63."""
    logprobs: bool | int | None = None
    """Give the log-probability of each generated token: true in conversations, which say how many others in
    top_logprobs; in completions so many of the likeliest in its place, 0 to 20."""
    top_logprobs: int | None = None
    """So many of the likeliest tokens in each place, 0 to 20, beside logprobs=true."""
    response_format: dict[str, Any] | None = None
    """What the answer must be: type text, json_object, or json_schema with json_schema.schema, a JSON Schema."""
    structured_outputs: dict[str, Any] | None = None
    """What the answer must be: one of json, regex, choice, grammar and json_object."""
    guided_json: dict[str, Any] | str | bool | None = None
    """A JSON Schema that the answer must meet."""
    guided_regex: str | None = None
    """A regular expression that the answer must match."""
    guided_choice: list[str] | None = None
    """The answer must be one of these texts."""
    guided_grammar: str | None = None
    """A Lark grammar that the answer must meet."""


PARAMETERS = frozenset((*_PLAIN, *BesideSampling.__struct_fields__))
"""What `sampling_fields` reads of a body."""
CONSTRAINTS = frozenset((_FORMAT, _STRUCTURED, *_GUIDED))
"""The parameters by which a body says what the answer must be, in OpenAI's words or vLLM's."""
RIDE_ALONG = frozenset(
    ("model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "stream_options")
)
"""What concerns the service alone, and changes no answer."""
NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "stream": (False,),
    "echo": (False,),
    "tools": ([],),
    "functions": ([],),
    "modalities": (["text"],),
    "suffix": ("",),
}
"""Values of otherwise unsupported parameters that change nothing, beside null."""


def sampling_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of SamplingParams, not yet checked. Raises InvalidRequest, which begins with the parameter's name."""
    fields = {name: body[name] for name in _PLAIN if body.get(name) is not None}
    return fields | _max_tokens(body) | _seed(body) | _logprobs(body) | _constraint(body)


def check_unsupported(name: str, value: Any) -> None:
    """Raises InvalidRequest for a parameter that is not supported, unless it has a value that changes nothing."""
    harmless = any(
        value == default and (value is default or default is not False) for default in NO_EFFECT.get(name, ())
    )
    if value is not None and not harmless:
        raise InvalidRequest(f"{name} is not supported{did_you_mean(nearest_parameter(name))}")


def constraint_name(body: Mapping[str, Any]) -> str | None:
    """The parameter by which a body says what the answer must be; None where none of OpenAI's or vLLM's does."""
    if CONSTRAINTS.isdisjoint(body):
        return None
    names = (name for name in (_FORMAT, _STRUCTURED, *_GUIDED) if body.get(name) not in (None, _ANY_TEXT))
    return next(names, None)


def _max_tokens(body: Mapping[str, Any]) -> dict[str, Any]:
    values = [body[name] for name in _LENGTHS if body.get(name) is not None]
    return {"max_tokens": values[0]} if values else {}


def _seed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Negative seeds are OpenAI's and vLLM's alone: each stands for one of ours."""
    seed = body.get("seed")
    if type(seed) is int and not -(2**63) <= seed < 2**63:
        raise InvalidRequest(f"seed={shown(seed)}: takes -2**63 to 2**63 - 1")
    if type(seed) is int and seed < 0:
        seed %= 2**63
    return {} if seed is None else {"seed": seed}


def _logprobs(body: Mapping[str, Any]) -> dict[str, Any]:
    """Chat completions ask by `logprobs: true` and say how many alternatives apart; completions ask by their number."""
    asked, most = body.get("logprobs"), body.get("top_logprobs")
    if most is not None and asked is not True and (most != 0 or asked is not None):
        raise InvalidRequest(f"top_logprobs={shown(most)}: takes a number beside logprobs=true")
    if asked is None or asked is False:
        return {}
    return {"logprobs": (most or 0) if asked is True else asked}


def _constraint(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the answer must be, by whichever parameter says so."""
    if "constraint" not in body and CONSTRAINTS.isdisjoint(body):
        return {}
    found = dict(filter(None, (_of_format(body), _of_structured(body), *_of_guided(body))))
    if body.get("constraint") is not None:
        found["constraint"] = body["constraint"]
    if len(found) > 1:
        one, other, *_ = found
        raise InvalidRequest(f"{one}: takes nothing beside {other}")
    return {"constraint": next(iter(found.values()))} if found else {}


def _of_format(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    """What `response_format` says: any text, any JSON object, or JSON of a schema."""
    asked = body.get(_FORMAT)
    if isinstance(asked, str):
        asked = from_text(_FORMAT, asked)
    kind = asked.get("type") if isinstance(asked, dict) else None
    if asked is None or (kind == "text" and len(asked) == 1):
        return None
    if kind == "json_object" and len(asked) == 1:
        return _FORMAT, {"json_schema": {"type": "object"}}
    if kind == "json_schema":
        return _FORMAT, {"json_schema": _schema(asked)}
    raise InvalidRequest(f"{_FORMAT}={shown(asked)}: takes type text, json_object or json_schema")


def _schema(asked: dict[str, Any]) -> Any:
    """The schema itself, which OpenAI wraps with a name, a description and whether it is to be strict."""
    named = asked.get("json_schema")
    if not isinstance(named, dict) or named.get("schema") is None:
        raise InvalidRequest(f"{_FORMAT}.json_schema: takes an object whose member schema is a JSON Schema")
    for name in named.keys() - {"name", "description", "schema", "strict"}:
        raise InvalidRequest(f"{_FORMAT}.json_schema: {shown(name)} is not supported")
    return unwrapped(named)


def _of_guided(body: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, {kind: body[name]}) for name, kind in _GUIDED.items() if body.get(name) is not None]


def _of_structured(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    """What vLLM's `structured_outputs` says."""
    asked = body.get(_STRUCTURED)
    if asked is None:
        return None
    given = {name: value for name, value in asked.items() if _is_given(name, value)} if isinstance(asked, dict) else {}
    if len(given) != 1 or not given.keys() <= _KINDS.keys():
        raise InvalidRequest(f"{_STRUCTURED}: takes an object with one of {', '.join(_KINDS)}")
    ((name, value),) = given.items()
    return _STRUCTURED, {_KINDS[name]: value}


def _is_given(name: str, value: Any) -> bool:
    """False for null, and for a flag of vLLM's that is off."""
    return value is not None and not (value is False and name in _VLLM_FLAGS)

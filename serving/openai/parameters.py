"""A body's sampling parameters, for an answer that somebody waits for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.openai_parameters import PARAMETERS, sampling_fields
from millrace.model_manager.wire.sampling import SamplingParams

INTERACTIVE = -1000
"""Priority of a request; rows of jobs have 0 unless they say otherwise, and wait."""
_MOST = 999
"""How far a request's own priority moves it: never behind a row of priority 0."""
_READ = PARAMETERS | {"prompt_logprobs"}
_KEPT = 256
"""Sets of parameters that are not checked again."""
TEMPERATURE = 1.0
"""OpenAI's default."""


def sampling(
    fields: Mapping[str, Any], max_tokens: int, adapter: str = "", *, most: int | None = None
) -> SamplingParams:
    """The parameters; `max_tokens` where the body names none, `adapter` the path of the one that it names as its model,
    `most` the tokens that the server allows an answer. Raises InvalidRequest, which names the parameter.
    """
    params = _of_body(fields, allowed(max_tokens, most))
    check_length(params.max_tokens, most)
    return msgspec.structs.replace(params, adapter=adapter) if adapter else params


def allowed(default: int, most: int | None) -> int:
    """What an answer has by default, within what the server allows."""
    return default if most is None else min(default, most)


def check_length(max_tokens: int, most: int | None) -> None:
    """Raises InvalidRequest for more tokens than the server allows an answer."""
    if most is not None and max_tokens > most:
        raise InvalidRequest(f"max_tokens={max_tokens}: takes at most {most} here (--max_tokens of the server)")


def _of_body(fields: Mapping[str, Any], max_tokens: int) -> SamplingParams:
    given = {name: value for name, value in fields.items() if name in _READ}
    try:
        hash(values := (*given.values(),))
    except TypeError:  # a list or an object
        return _checked(given, max_tokens)
    return _seen_before(max_tokens, *given, *values)


@lru_cache(_KEPT, typed=True)  # true is not 1
def _seen_before(max_tokens: int, *given: Any) -> SamplingParams:
    """`given`: names, then their values. Clients repeat their parameters; to look them up is faster than to check."""
    half = len(given) // 2
    return _checked(dict(zip(given[:half], given[half:], strict=True)), max_tokens)


def _checked(fields: Mapping[str, Any], max_tokens: int) -> SamplingParams:
    if "adapter" in fields:
        raise InvalidRequest("adapter: is not taken here: name an adapter of the server (--adapters) as the model")
    own = {"prompt_logprobs": fields["prompt_logprobs"]} if "prompt_logprobs" in fields else {}
    defaults = {"temperature": TEMPERATURE, "max_tokens": max_tokens, "priority": INTERACTIVE}
    params = SamplingParams.parse(defaults | sampling_fields(fields) | own)
    if "priority" not in fields:
        return params
    return msgspec.structs.replace(params, priority=priority_of(params.priority))


def priority_of(own: int) -> int:
    """The priority of a request that names this one."""
    return INTERACTIVE + max(-_MOST, min(_MOST, own))

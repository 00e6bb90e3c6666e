"""Bodies that TGI's routes take, and their meaning as our sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from millrace.model_manager.wire.conversion import converted
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.sampling import SamplingParams

from ..openai.bodies import ignored_header
from ..openai.parameters import INTERACTIVE, allowed, check_length

_MAX_NEW_TOKENS = 100
"""TGI's default."""
_NAMES = {
    "model": "adapter_id",
    "prompt": "inputs",
    "max_tokens": "max_new_tokens",
    "n": "best_of",
    "constraint": "grammar",
    "prompt_logprobs": "decoder_input_details",
}
"""Our names of parameters, and TGI's."""


class GrammarType(msgspec.Struct, frozen=True):
    """What the answer must be."""

    type: Literal["json", "regex", "json_schema"]
    value: Any
    """A JSON Schema, a regular expression, or an object whose `schema` is a JSON Schema."""


class GenerateParameters(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters` of TGI's routes."""

    max_new_tokens: int | None = None
    """Most tokens to generate; 100 by default."""
    do_sample: bool = False
    """Sample; other parameters of sampling imply it, and without any the answer is greedy."""
    temperature: float | None = None
    """Above 0."""
    top_k: int | None = None
    """Sample among the k likeliest tokens."""
    top_p: float | None = None
    """Sample among the likeliest tokens that together reach this probability."""
    typical_p: float | None = None
    """Sample among the most typical tokens that together reach this probability."""
    repetition_penalty: float | None = None
    """Above 1 makes tokens of the prompt and the answer less likely."""
    frequency_penalty: float | None = None
    """Subtracted from the logits of tokens that the answer contains, once per occurrence."""
    seed: int | None = None
    """The same seed gives the same random numbers."""
    stop: list[str] = []
    """The answer ends with the first of these texts, which is a part of it, as TGI has it."""
    return_full_text: bool = False
    """Put the prompt before the answer."""
    details: bool = False
    """Give the tokens of the answer with their log-probabilities, and why it ended."""
    decoder_input_details: bool = False
    """Give the tokens of the prompt too; not of a stream."""
    top_n_tokens: int | None = None
    """Give so many of the likeliest tokens in each place."""
    truncate: int | None = None
    """Take the last so many tokens of the prompt."""
    best_of: int | None = None
    """Give the likeliest of so many sampled answers; not of a stream."""
    grammar: GrammarType | None = None
    """What the answer must be."""
    watermark: bool = False
    """Takes false."""
    adapter_id: str | None = None
    """Name of an adapter of the server (--adapters)."""


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True):
    """`/generate` and `/generate_stream`."""

    inputs: str
    """The prompt, as it is."""
    parameters: GenerateParameters = GenerateParameters()
    """How it is answered."""
    stream: bool = False
    """Whether the base address answers as `/generate_stream` does."""


def read_body(fields: Mapping[str, Any], *, is_stream: bool) -> GenerateBody:
    """A body; raises InvalidRequest, which names the field."""
    given = fields.get("parameters", {})
    if not isinstance(given, Mapping):
        raise InvalidRequest("parameters: takes an object")
    known = {name: value for name, value in given.items() if value is not None}
    parameters = converted(known, GenerateParameters, InvalidRequest, what="parameter")
    names = {name: fields[name] for name in ("inputs", "stream") if name in fields}
    body = converted(names, GenerateBody, InvalidRequest, what="field")
    _check(parameters, is_stream=is_stream)
    return msgspec.structs.replace(body, parameters=parameters)


def _check(given: GenerateParameters, *, is_stream: bool) -> None:
    refused = (
        ("watermark", given.watermark, "is not supported"),
        ("temperature", given.temperature is not None and given.temperature <= 0, "must be above 0"),
        ("decoder_input_details", is_stream and given.decoder_input_details, "is not taken of a stream"),
        ("best_of", is_stream and (given.best_of or 1) > 1, "takes 1 of a stream"),
        ("best_of", (given.best_of or 1) > 1 and not samples(given), "takes 1 of an answer that is not sampled"),
        ("max_new_tokens", given.max_new_tokens is not None and given.max_new_tokens < 1, "takes 1 or more"),
        ("truncate", given.truncate is not None and given.truncate < 1, "takes 1 or more"),
    )
    for name, holds, told in refused:
        if holds:
            raise InvalidRequest(f"{name}: {told}")


def samples(given: GenerateParameters) -> bool:
    """Whether tokens are drawn, and not the likeliest taken."""
    shares = any(each is not None and each < 1 for each in (given.top_p, given.typical_p))
    return given.do_sample or given.temperature not in (None, 1.0) or bool(given.top_k) or shares


def sampling(
    given: GenerateParameters, adapter: str = "", *, is_stream: bool, most: int | None = None
) -> SamplingParams:
    """The parameters, with an adapter's path; `most`: tokens that the server allows an answer. Raises InvalidRequest,
    which names the parameter.
    """
    length = allowed(_MAX_NEW_TOKENS, most) if given.max_new_tokens is None else given.max_new_tokens
    check_length(length, most)
    same = ("top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "seed", "stop")
    shown = given.top_n_tokens or (0 if is_stream or given.details or (given.best_of or 1) > 1 else None)
    fields = {name: getattr(given, name) for name in same} | {
        "max_tokens": length,
        "temperature": (1.0 if given.temperature is None else given.temperature) if samples(given) else 0.0,
        "include_stop_str_in_output": True,
        "n": given.best_of,
        "logprobs": shown,
        "prompt_logprobs": 0 if given.decoder_input_details else None,
        "constraint": _constraint(given.grammar),
        "priority": INTERACTIVE,
        "adapter": adapter,
    }
    return SamplingParams.parse(fields)


def _constraint(grammar: GrammarType | None) -> dict[str, Any] | None:
    if grammar is None:
        return None
    if grammar.type == "regex":
        return {"regex": grammar.value}
    value = grammar.value
    if grammar.type == "json_schema" and isinstance(value, Mapping):
        value = value.get("schema", value)
    return {"json_schema": _schema(value) if isinstance(value, str) else value}


def _schema(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidRequest(f"grammar: its value is not JSON: {error}") from None


def names_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Our names of parameters that a body has by others; log-probabilities come of several."""
    given = fields.get("parameters")
    given = given if isinstance(given, Mapping) else {}
    asked = next((name for name in ("top_n_tokens", "details", "best_of") if given.get(name)), "stream")
    return _NAMES | {"logprobs": asked}


def ignored(fields: Mapping[str, Any]) -> dict[str, str]:
    """The header that names the fields which changed nothing. An unknown parameter is refused, so it is in none."""
    return ignored_header(fields.keys() - {*GenerateBody.__struct_fields__})

"""What each dialect of servers takes of a request's parameters: told of a job before it starts, and of each row.

The dialects themselves are in `backends/endpoint`. Triton's and KServe's models name their inputs themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .conversion import unknown
from .endpoint_options import EndpointOptions, listed
from .errors import ConfigError, InvalidRequest
from .sampling import SamplingParams

ALWAYS = frozenset(("max_tokens", "temperature", "n", "priority", "deadline"))
"""Parameters that every dialect takes: the last three are obeyed on this side of the connection."""
TOKEN_IDS = "return_token_ids"
"""An extra parameter that no row sets: with it answers are read as streams of token ids."""
OPENAI = frozenset(("top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop"))
OPENAI_EXTRA = frozenset(
    ("top_k", "min_p", "typical_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "constraint")
) | frozenset(("include_stop_str_in_output", "bad_words", "allowed_token_ids", "cache_salt", "logprobs", TOKEN_IDS))
"""What servers that speak OpenAI's dialect may take beyond it: the option `extra_parameters` names what they do."""
STRUCTURED = {"json_schema": "json", "json": "json_object", "regex": "regex", "choice": "choice"}
"""Constraints that vLLM's `structured_outputs` holds an answer to, and its names for them."""
_RESPONSE_FORMAT = frozenset(("json_schema", "json"))
"""Constraints that OpenAI's `response_format` holds an answer to, in a chat."""
TGI_SAMPLED = frozenset(("top_k", "top_p", "typical_p", "seed"))
TGI_OTHERS = frozenset(("repetition_penalty", "frequency_penalty", "stop"))
TGI_HERE = frozenset(("include_stop_str_in_output",))
"""Obeyed on this side of the connection."""
LLAMA_SAME = ("temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "ignore_eos")
"""Parameters that llama.cpp's server has under our names."""
LLAMA_OTHERS = frozenset(("top_k", "repetition_penalty", "logit_bias", "seed", "stop", "logprobs"))
MII_OPENAI = frozenset(("top_k", "top_p"))
_DEFAULTS = SamplingParams()


@dataclass(frozen=True)
class DialectParameters:
    """What a dialect takes."""

    name: str
    own: frozenset[str]
    """Parameters beside the ones that every dialect takes."""
    constraints: Collection[str] = ()
    """Kinds of constraints that it holds an answer to."""

    def check(self, params: SamplingParams) -> None:
        """Raises InvalidRequest for a parameter that is not at its default and that the dialect lacks."""
        taken = ALWAYS | self.own | {"constraint"}
        for name in SamplingParams.__struct_fields__:
            value = getattr(params, name)
            if name not in taken and value != getattr(_DEFAULTS, name):
                raise InvalidRequest(f"{name}={value!r}: the dialect {self.name} does not take it")
        if params.constraint is not None and params.constraint.kind not in self.constraints:
            takes = ", ".join(sorted(self.constraints)) or "no constraint"
            raise InvalidRequest(f"constraint: the dialect {self.name} takes {takes}, got {params.constraint.kind}")


TGI = DialectParameters("tgi", TGI_SAMPLED | TGI_OTHERS | TGI_HERE, ("json_schema", "regex"))
LLAMA_COMPLETION = DialectParameters("llama-completion", LLAMA_OTHERS | frozenset(LLAMA_SAME))
MII = DialectParameters("mii", MII_OPENAI | {"ignore_eos"})
_FIXED = {each.name: each for each in (TGI, LLAMA_COMPLETION, MII)} | {
    name: DialectParameters(name, MII_OPENAI) for name in ("mii-chat", "mii-completions")
}


def dialect_parameters(options: EndpointOptions) -> DialectParameters | None:
    """What the dialect of these options takes; None where only the server knows (Triton, KServe).

    Raises ConfigError for an extra parameter that there is not.
    """
    extra = frozenset(listed(options.extra_parameters))
    for name in sorted(extra - OPENAI_EXTRA):
        raise ConfigError(f"extra_parameters: {unknown(name, sorted(OPENAI_EXTRA), what='parameter')}")
    if options.dialect in ("triton", "kserve"):
        return None
    if options.dialect in _FIXED:
        return _FIXED[options.dialect]
    by_chat = _RESPONSE_FORMAT if options.dialect == "openai" else ()
    constraints = STRUCTURED if "constraint" in extra else by_chat
    return DialectParameters(options.dialect, OPENAI | extra - {"constraint", TOKEN_IDS}, constraints)

"""The dialect of Hugging Face's Text Generation Inference: `/generate`.

Source: TGI's docs/openapi.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...wire import dialect_parameters
from ...wire.request import FinishReason, Request
from .dialects import Call, Garbled, ServerAnswer, TextDialect, cut_at_stop, given, parsed

_ENDINGS = {"length": FinishReason.LENGTH, "eos_token": FinishReason.STOP, "stop_sequence": FinishReason.STOP}
_PROMPT_TOKENS = "x-prompt-tokens"
_DIGITS = 16


class _Details(msgspec.Struct):
    finish_reason: str
    generated_tokens: int


class _Generated(msgspec.Struct):
    generated_text: str
    details: _Details


class _Info(msgspec.Struct):
    max_total_tokens: int = 0


class TGI(TextDialect):
    """Text in, text out."""

    parameters = dialect_parameters.TGI
    probes: tuple[Call, ...] = (Call("/health"), Call("/info"))

    def learn(self, route: str, body: bytes) -> None:
        """`/info` tells how long a prompt and its answer may be."""
        if route == "/info":
            self.max_model_len = parsed(body, _Info).max_total_tokens

    def call(self, request: Request) -> Call:
        """TGI takes no temperature of 0: `do_sample` false is greedy."""
        params = request.params
        fields: dict[str, Any] = {"max_new_tokens": params.max_tokens, "details": True, "return_full_text": False}
        fields["do_sample"] = params.temperature > 0
        if fields["do_sample"]:
            fields |= {"temperature": params.temperature} | given(params, dialect_parameters.TGI_SAMPLED)
        fields |= given(params, dialect_parameters.TGI_OTHERS)
        if params.constraint is not None:
            kind = params.constraint.kind
            fields["grammar"] = {"type": kind.removesuffix("_schema"), "value": getattr(params.constraint, kind)}
        return Call("/generate", msgspec.json.encode({"inputs": request.text, "parameters": fields}))

    def read(self, request: Request, body: bytes, headers: Mapping[str, str]) -> ServerAnswer:
        """The text without the stop string, which TGI leaves in."""
        found = parsed(body, _Generated)
        reason = found.details.finish_reason
        if reason not in _ENDINGS:
            raise Garbled(f"its answer ended for finish_reason={reason!r}")
        text, stop = found.generated_text, None
        if reason == "stop_sequence":
            text, stop = cut_at_stop(text, request.params)
        counted = headers.get(_PROMPT_TOKENS, "")
        return ServerAnswer(
            text=text,
            finish_reason=_ENDINGS[reason],
            stop_reason=stop,
            num_tokens=found.details.generated_tokens,
            prompt_tokens=int(counted) if counted.isdecimal() and len(counted) < _DIGITS else 0,
        )

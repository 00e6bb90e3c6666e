"""The dialect of llama.cpp's own route `/completion`, which its older forks speak too (PowerInfer's, ik_llama.cpp's).

Every sampling parameter is sent, at its default too: these servers have other defaults (top_k 40, min_p 0.05, and the
older ones a penalty of 1.1 on repetition).
Source: examples/server/README.md of llama.cpp, and of PowerInfer for the older names in an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...wire.dialect_parameters import LLAMA_COMPLETION, LLAMA_SAME
from ...wire.errors import InvalidRequest
from ...wire.request import FinishReason, Request
from .dialects import Call, Garbled, ServerAnswer, TextDialect, parsed
from .given_logprobs import NO_ENTRIES, logprobs_in, num_asked
from .streams import StreamPiece, TokenIdList, goes_on


class _Completed(msgspec.Struct):
    content: str
    stop: bool = False
    stop_type: str = ""
    stopped_eos: bool = False
    stopped_word: bool = False
    stopped_limit: bool = False
    stopping_word: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    tokens: TokenIdList | None = None
    """The tokens of one event, in a stream; None in a whole answer."""
    completion_probabilities: msgspec.Raw = NO_ENTRIES
    truncated: bool = False
    """The prompt, or what was generated, was cut to fit the slot's context."""


class LlamaCompletion(TextDialect):
    """Text in, text out."""

    parameters = LLAMA_COMPLETION
    probes: tuple[Call, ...] = (Call("/props"),)
    needs_prompt_token_ids = False

    def streams(self, request: Request) -> bool:
        """Streams carry tokens, but in servers that are older than that."""
        return goes_on(request.params)

    def call(self, request: Request) -> Call:
        """All parameters; seeds have 32 bits there, and the largest draws another each time. A prompt of several parts
        is text and the tokens to go on from.
        """
        params, given = request.params, request.output_token_ids
        fields: dict[str, Any] = {"prompt": [request.text, *given] if given else request.text}
        fields |= {"n_predict": params.max_tokens - len(given), "stop": list(params.stop)}
        fields |= {name: getattr(params, name) for name in LLAMA_SAME}
        fields |= {"top_k": params.top_k, "repeat_penalty": params.repetition_penalty}
        fields["logit_bias"] = [[token, bias] for token, bias in params.logit_bias.items()]
        if params.seed is not None:
            fields["seed"] = params.seed % (2**32 - 1)
        if params.logprobs is not None:
            fields["n_probs"] = num_asked(params)
        if self.streams(request):
            fields["stream"] = True
        return Call("/completion", msgspec.json.encode(fields))

    def read(self, request: Request, body: bytes, headers: Mapping[str, str]) -> ServerAnswer:
        """The text without the stop string, which the server leaves out."""
        del headers
        found = parsed(body, _Completed)
        return ServerAnswer(
            text=found.content,
            finish_reason=_ending(found),
            stop_reason=found.stopping_word or None,
            num_tokens=found.tokens_predicted,
            prompt_tokens=found.tokens_evaluated,
            logprobs=logprobs_in(found.completion_probabilities, found.content, request.params),
        )

    def piece(self, event: bytes) -> StreamPiece:
        """The last one says how it ended; its own text stands in those before."""
        found = parsed(event, _Completed)
        return StreamPiece(
            text=found.content,
            token_ids=found.tokens,
            num_tokens=found.tokens_predicted,
            finish_reason=_ending(found) if found.stop else None,
            stop_reason=found.stopping_word or None,
            prompt_tokens=found.tokens_evaluated,
        )


def _ending(found: _Completed) -> FinishReason:
    if found.truncated:
        raise InvalidRequest(
            "prompt: with its answer it is longer than a slot of the server's context, which cut it; give the"
            " server a larger --ctx-size, which its slots (--parallel) divide"
        )
    is_limit = found.stopped_limit or found.stop_type == "limit"
    if not (is_limit or found.stopped_eos or found.stopped_word or found.stop_type in ("eos", "word")):
        raise Garbled("its answer does not say why it ended")
    return FinishReason.LENGTH if is_limit else FinishReason.STOP

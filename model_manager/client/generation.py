"""What the client adds to an output: its text and the text of each token. Knows the tokenizer's `decode` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from msgspec.structs import replace

from ..wire.common_beginning import common_beginning
from ..wire.logprobs import Logprobs, TokenLogprob, TopLogprob
from ..wire.messages import FinishReason, Output, Request
from ..wire.sampling import SamplingParams

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MOST_PENDING = 64
"""Tokens within which a byte that took characters away is followed by those that bring them back, if any are."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""

    def joined(self, ids: Sequence[int]) -> str:
        """The text of each token but special ones, joined, as a constraint takes an output."""


def answer_of(output: Output, request: Request, decoder: Decoder | None, latency: float) -> Output:
    """The output of that request, with all that the client adds; no decoder where the engine gives text."""
    if decoder is None:
        return replace(output, latency=latency)
    prompt, given = output.prompt_logprobs, output.logprobs
    if request.task == "score":
        assert prompt is not None, "a score has log-probabilities"
        scored = replace(prompt, token_ids=request.prompt_token_ids[request.score_from :])
        return replace(output, prompt_logprobs=scored, latency=latency)
    if request.task == "embed":
        return replace(output, latency=latency)
    return replace(
        output,
        text=text_of(output, request.params, decoder),
        closed_at=_closed_at(output, decoder),
        latency=latency,
        logprobs=given and with_texts(output.token_ids, given, decoder),
        prompt_logprobs=prompt and with_texts(request.prompt_token_ids[1:], prompt, decoder),
    )


def text_of(output: Output, params: SamplingParams, decoder: Decoder) -> str:
    """The output's text: ends before (or after, if asked) what stopped it, and never within a character.

    Under a constraint it is, to the character, what the constraint was held to; where that lets it end is whole.
    """
    decode = decoder.decode if params.constraint is None else decoder.joined
    text = decode(output.token_ids[:-1] if _ends_in_token(output, params) else output.token_ids)
    if isinstance(output.stop_reason, str):
        text = text[: _end(text, output.stop_reason, output.token_ids, params, decode)]
    return text if params.constraint is not None else text.rstrip(_REPLACEMENT)


def partial_text(token_ids: Sequence[int], params: SamplingParams, decoder: Decoder) -> str:
    """The text of an output that came to no end."""
    decode = decoder.decode if params.constraint is None else decoder.joined
    return decode(token_ids).rstrip(_REPLACEMENT)


def _closed_at(output: Output, decoder: Decoder) -> int | None:
    """A character that the model has begun is not its own."""
    if output.num_own_tokens is None:
        return None
    own, text = (decoder.joined(output.token_ids[:end]) for end in (output.num_own_tokens, None))
    return common_beginning(own, text)


def _ends_in_token(output: Output, params: SamplingParams) -> bool:
    """Whether the last token stopped the output and is no part of its text; under a constraint none ever is."""
    if isinstance(output.stop_reason, str):
        return False
    if params.constraint is not None:
        return not output.complete
    return output.finish_reason is FinishReason.STOP and not params.include_stop_str_in_output


def _end(
    text: str, stop: str, token_ids: Sequence[int], params: SamplingParams, decode: Callable[[Sequence[int]], str]
) -> int:
    """Where the text ends for the stop string that ended it: at the first that was complete no sooner than min_tokens
    allows, and with the last token under a constraint: others were passed over.
    """
    passed = len(token_ids) if params.constraint is not None else params.min_tokens
    early = _shown(text, token_ids[: max(0, passed - 1)], decode)
    at = text.find(stop, max(0, early - len(stop) + 1))
    if at < 0:
        return len(text)
    return at + len(stop) if params.include_stop_str_in_output else at


def _shown(text: str, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """How many characters of a text had been there once when it had these tokens: a byte may have taken some away."""
    most = 0
    for count in range(len(token_ids), max(0, len(token_ids) - _MOST_PENDING), -1):
        early = decode(token_ids[:count])
        most = max(most, common_beginning(early.rstrip(_REPLACEMENT), text))
        if not early.endswith(_REPLACEMENT):
            break
    return most


def with_texts(token_ids: Sequence[int], given: Logprobs, decoder: Decoder) -> Logprobs:
    """The log-probabilities of the tokens, with the text that each token has alone."""

    @cache
    def text(token_id: int) -> str:
        return decoder.decode([token_id], skip_special_tokens=False)

    def alternatives(place: int) -> list[TopLogprob]:
        if not given.top_token_ids:
            return []
        pairs = zip(given.top_token_ids[place], given.top_logprobs[place], strict=True)
        return [TopLogprob(text(token_id), token_id, logprob) for token_id, logprob in pairs]

    tokens = [
        TokenLogprob(text(token_id), token_id, logprob, alternatives(place))
        for place, (token_id, logprob) in enumerate(zip(token_ids, given.logprobs, strict=True))
    ]
    return replace(given, tokens=tokens)

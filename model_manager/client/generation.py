"""Adds the text to an output, and to each token that has log-probabilities. Knows the tokenizer only as a `Decoder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from msgspec.structs import replace

from ..wire.common_beginning import common_beginning
from ..wire.logprobs import Logprobs, TokenLogprob, TopLogprob
from ..wire.request import FinishReason, Output, Request
from ..wire.sampling import SamplingParams
from .text_pieces import REPLACEMENT, TextPieces

_MOST_PENDING = 64
"""Tokens that are searched back: a byte can take characters away, and the bytes that restore them follow soon."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""

    def joined(self, ids: Sequence[int]) -> str:
        """The text of each token but special ones, joined, as a constraint takes an output."""

    def pieces(self, *, joined: bool) -> TextPieces | None:
        """The same text as `decode` or `joined` makes, of tokens that come one by one; None if a later token may change
        any of it.
        """


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

    Under a constraint that it meets, the text is exactly the one that the constraint was checked against, so it ends
    with a whole character.
    """
    decode = decoder.decode if params.constraint is None else decoder.joined
    text = decode(output.token_ids[:-1] if _ends_in_token(output, params) else output.token_ids)
    if isinstance(output.stop_reason, str):
        text = text[: _end(text, output.stop_reason, output.token_ids, params, decode)]
    return text if params.constraint is not None and not output.is_cut else text.rstrip(REPLACEMENT)


def partial_text(token_ids: Sequence[int], params: SamplingParams, decoder: Decoder) -> str:
    """The text of an unfinished output."""
    decode = decoder.decode if params.constraint is None else decoder.joined
    return decode(token_ids).rstrip(REPLACEMENT)


def _closed_at(output: Output, decoder: Decoder) -> int | None:
    """Number of characters before the tokens that closed the output; a character that the model only began is not
    counted. None if the output was not closed.
    """
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
    """Where the text ends for the stop string that ended it: at its first occurrence that was not complete before
    `min_tokens` tokens. Under a constraint, it is the occurrence that the last token completed; earlier ones did not
    end the output.
    """
    passed = len(token_ids) if params.constraint is not None else params.min_tokens
    early = _shown(text, token_ids[: max(0, passed - 1)], decode)
    at = text.find(stop, max(0, early - len(stop) + 1))
    if at < 0:
        return len(text)
    return at + len(stop) if params.include_stop_str_in_output else at


def _shown(text: str, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """The most characters of `text` that were decoded at any point up to these tokens. A later byte may have taken
    some away again.
    """
    most = 0
    for count in range(len(token_ids), max(0, len(token_ids) - _MOST_PENDING), -1):
        early = decode(token_ids[:count])
        most = max(most, common_beginning(early.rstrip(REPLACEMENT), text))
        if not early.endswith(REPLACEMENT):
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

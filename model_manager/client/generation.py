"""What a request came to, as text. Knows no socket and no model, only the tokenizer's `decode`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model_manager.wire.messages import FinishReason, Output, Timings

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""


@dataclass(frozen=True)
class Generation:
    """A finished request."""

    text: str
    """Without the stop string or stop token, and without special tokens."""
    token_ids: list[int]
    """All generated tokens, including the one that stopped it."""
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or stop token id; None for the end of sequence and for length."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV cache was reused."""
    timings: Timings
    latency: float
    """Seconds from submit to here, as the client measured them."""


def generation(output: Output, stops: Sequence[str], decoder: Decoder, latency: float) -> Generation:
    """`output` with its text; `stops` are the request's stop strings."""
    return Generation(
        text=text_of(output, stops, decoder),
        token_ids=output.token_ids,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        prompt_tokens=output.prompt_tokens,
        cached_tokens=output.cached_tokens,
        timings=output.timings,
        latency=latency,
    )


def text_of(output: Output, stops: Sequence[str], decoder: Decoder) -> str:
    """The output's text: ends before the first stop string or the stop token, and never within a character."""
    ends_in_token = output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str)
    text = decoder.decode(output.token_ids[:-1] if ends_in_token else output.token_ids, skip_special_tokens=True)
    if isinstance(output.stop_reason, str):
        text = text[: min((at for at in map(text.find, stops) if at >= 0), default=len(text))]
    return text.rstrip(_REPLACEMENT)

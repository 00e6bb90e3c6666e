"""Answers in the form of OpenAI's completions and chat completions.

Output rows of the batch format and answers of `millrace serve` are made here. Source:
https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .logprobs import TokenLogprob, TopLogprob
from .request import FinishReason
from .text_offsets import PART_OF_CHARACTER, text_offsets

_REASONS = {FinishReason.DEADLINE: FinishReason.LENGTH}
"""OpenAI's word for an answer that was cut, whatever cut it."""


def reason_word(reason: FinishReason) -> str:
    """Why an answer ended, as OpenAI says it."""
    return _REASONS.get(reason, reason)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """What an answer took."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def choice(
    index: int, text: str, reason: FinishReason, logprobs: Sequence[TokenLogprob] | None, *, is_chat: bool
) -> dict[str, Any]:
    """One whole answer."""
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "index": index,
        **({"message": message} if is_chat else {"text": text}),
        "logprobs": chat_logprobs(logprobs) if is_chat else text_logprobs(logprobs, text_offsets(text, logprobs or [])),
        "finish_reason": reason_word(reason),
    }


def chat_logprobs(logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    """The log-probabilities of an answer in a conversation, or of a part of it."""
    if logprobs is None:
        return None
    return {
        "content": [{**_token(each), "top_logprobs": [_token(top) for top in each.top_logprobs]} for each in logprobs],
        "refusal": None,
    }


def _token(token: TopLogprob) -> dict[str, Any]:
    """A token with the bytes of its text in UTF-8; None instead of bytes if it is a part of a character."""
    is_text = PART_OF_CHARACTER not in token.token
    return {
        "token": token.token,
        "logprob": token.logprob,
        "bytes": list(token.token.encode()) if is_text else None,
    }


def text_logprobs(logprobs: Sequence[TokenLogprob] | None, offsets: list[int]) -> dict[str, Any] | None:
    """The log-probabilities of a text, or of a part of it; `offsets`: where each token begins (text_offsets.py)."""
    if logprobs is None:
        return None
    return {
        "tokens": [each.token for each in logprobs],
        "token_logprobs": [each.logprob for each in logprobs],
        "top_logprobs": [_tops(each) for each in logprobs],
        "text_offset": offsets,
    }


def _tops(token: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens, and the token itself where it is none of them."""
    return {top.token: top.logprob for top in token.top_logprobs} | {token.token: token.logprob}

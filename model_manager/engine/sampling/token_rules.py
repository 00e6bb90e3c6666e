"""Rules on tokens: those that a request favours, allows and forbids.

Knows one request's token ids; the tokenizer only turns bad words into ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...wire.errors import InvalidRequest
from ...wire.sampling import SamplingParams
from ..interface import Ints


@dataclass(frozen=True)
class TokenRules:
    """The rules of one request."""

    biased: Ints
    """Token ids whose logits `biases` is added to."""
    biases: npt.NDArray[np.float32]
    allowed: Ints
    """The only allowed token ids; empty if all are."""
    endings: Ints
    """Token ids that are forbidden before `min_tokens` of output."""
    min_tokens: int
    bad_words: Mapping[tuple[int, ...], list[int]]
    """Forbidden sequences of token ids: the tokens that may not follow, by the tokens before them."""

    def banned(self, output: Ints) -> Ints:
        """The token ids that may not follow these output tokens."""
        beginnings = [_end(output, length) for length in self._lengths if length <= len(output)]
        words = [last for beginning in beginnings for last in self.bad_words.get(beginning, ())]
        early = self.endings if len(output) < self.min_tokens else self.endings[:0]
        return np.concatenate([early, np.array(words, np.int32)]) if words else early

    @cached_property
    def _lengths(self) -> list[int]:
        """How many tokens are before the last one of a forbidden sequence."""
        return sorted({*map(len, self.bad_words)})


def token_rules(
    params: SamplingParams, eos_token_ids: Collection[int], vocab_size: int, tokenizer: Any
) -> TokenRules | None:
    """The rules of a request; None if it has none.

    Raises InvalidRequest for token ids that the model does not have, and for bad words without a tokenizer.
    """
    endings = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)} if params.min_tokens else set()
    check_token_ids(params, vocab_size)
    words = bad_word_tokens(params.bad_words, tokenizer) if params.bad_words else ()
    if not (params.logit_bias or params.allowed_token_ids or endings or words):
        return None
    return TokenRules(
        biased=np.array(list(params.logit_bias), np.int32),
        biases=np.array(list(params.logit_bias.values()), np.float32),
        allowed=np.unique(np.array(params.allowed_token_ids or (), np.int32)),
        endings=np.array(sorted(token for token in endings if token < vocab_size), np.int32),
        min_tokens=params.min_tokens,
        bad_words=_by_beginning(word for word in words if max(word) < vocab_size),
    )


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidRequest for parameters that name token ids that the model does not have."""
    for name, ids in (("logit_bias", params.logit_bias), ("allowed_token_ids", params.allowed_token_ids or ())):
        if ids and max(ids) >= vocab_size:
            raise InvalidRequest(f"{name}: has token id {max(ids)}; the model's are 0 to {vocab_size - 1}")


def bad_word_tokens(words: Collection[str], tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens at the beginning of a text and after a space, as vLLM takes them."""
    if tokenizer is None:
        raise InvalidRequest("bad_words: takes strings only for a model whose folder has a tokenizer.json")
    texts = [prefix + word.lstrip() for word in words for prefix in ("", " ")]
    found = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    return tuple(dict.fromkeys(word for word in found if word))


def _by_beginning(words: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for word in words:
        found[word[:-1]].append(word[-1])
    return dict(found)


def _end(output: Ints, length: int) -> tuple[int, ...]:
    """The last tokens, so many."""
    return tuple(output[len(output) - length :].tolist())

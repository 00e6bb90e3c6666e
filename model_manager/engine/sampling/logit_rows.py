"""The sampler's inputs for each row of logits: its parameters, and the tokens before it.

Knows rows; not sequences, nor why a sequence has several rows. A sequence's rows differ in `lengths` only: the row
after j draft tokens has a history of j tokens more, which lie in the sequence's row of `tokens`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...wire.sampling import COLUMNS, SamplingParams
from ..interface import Ints, Longs
from .token_rules import TokenRules

_BESIDE = {"seed": np.uint64, "num_prompt_tokens": np.int64, "num_logprobs": np.int64}
SETTINGS = np.dtype([*_BESIDE.items(), *COLUMNS.items()], align=True)
"""One sequence's numbers, by SamplingParams' names; `num_logprobs` is -1 where the request wants none."""


def settings_of(params: SamplingParams, seed: int, num_prompt_tokens: int) -> tuple[Any, ...]:
    """A record of SETTINGS."""
    num_logprobs = -1 if params.logprobs is None else params.logprobs
    return seed, num_prompt_tokens, num_logprobs, *(getattr(params, name) for name in COLUMNS)


@dataclass(frozen=True)
class Listed:
    """Token ids that rules name, for some of the rows: entry n is `token_ids[n]` of row `rows[n]`, in order of rows."""

    rows: Longs
    """[N]"""
    token_ids: Longs
    """[N]"""
    values: npt.NDArray[np.float32]
    """[N] what is added to the logit, for rules that add something."""

    @classmethod
    def of(cls, entries: Iterable[tuple[int, Ints, npt.NDArray[np.float32] | None]]) -> Listed:
        """Make one from (row, its token ids, their values) in order of rows."""
        found = [entry for entry in entries if len(entry[1])]
        if not found:
            return _NOTHING
        rows = np.repeat(np.array([row for row, _, _ in found]), [len(ids) for _, ids, _ in found])
        token_ids = np.concatenate([ids for _, ids, _ in found]).astype(np.int64)
        values = [np.zeros(len(ids), np.float32) if value is None else value for _, ids, value in found]
        return cls(rows, token_ids, np.concatenate(values))


MaskBits = npt.NDArray[np.uint32]
"""[M, at least V / 32] masks of V tokens: bit t % 32 of word t // 32 is set if token t is allowed."""
NO_MASKS: MaskBits = np.zeros((0, 0), np.uint32)


def mask_words(vocab_size: int) -> int:
    """uint32 words of one mask."""
    return -(-vocab_size // 32)


_NOTHING = Listed(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True)
class SamplingRows:
    """How to sample each of L rows of logits; the token of row l is a function of that row's entries alone."""

    settings: npt.NDArray[np.void]
    """[L] of SETTINGS."""
    tokens: Ints
    """[R, M] prompt, output and draft tokens of sequences."""
    token_rows: Longs
    """[L] the row of `tokens` that holds the history."""
    lengths: Longs
    """[L] how many tokens of the history come before the one to sample: prompt, output so far, drafts so far."""
    biased: Listed
    banned: Listed
    allowed: Listed
    """Rows that are not listed may have any token."""
    masks: MaskBits
    mask_rows: Longs
    """[L] index of the row's mask, -1 for none."""

    @classmethod
    def of(
        cls,
        settings: npt.NDArray[np.void],
        tokens: Ints,
        token_rows: Longs,
        lengths: Longs,
        rules: List[TokenRules | None],
        masks: MaskBits = NO_MASKS,
        mask_rows: Longs | None = None,
    ) -> SamplingRows:
        """Make the rows, with each row's rules; None for a row without."""
        ruled = [(row, each) for row, each in enumerate(rules) if each is not None]
        return cls(
            settings=settings,
            tokens=tokens,
            token_rows=token_rows,
            lengths=lengths,
            biased=Listed.of((row, each.biased, each.biases) for row, each in ruled),
            allowed=Listed.of((row, each.allowed, None) for row, each in ruled),
            banned=Listed.of(
                (row, each.banned(tokens[token_rows[row], settings["num_prompt_tokens"][row] : lengths[row]]), None)
                for row, each in ruled
            ),
            masks=masks,
            mask_rows=_none(len(settings)) if mask_rows is None else mask_rows,
        )

    @property
    def index(self) -> Longs:
        """[L] index of the output token that is sampled."""
        index: Longs = self.lengths - self.settings["num_prompt_tokens"]
        return index

    def only(self, chosen: Longs) -> SamplingRows:
        """The parameters and histories of these rows, in ascending order, without rules and masks."""
        return SamplingRows(
            self.settings[chosen],
            self.tokens,
            self.token_rows[chosen],
            self.lengths[chosen],
            biased=_NOTHING,
            banned=_NOTHING,
            allowed=_NOTHING,
            masks=NO_MASKS,
            mask_rows=_none(len(chosen)),
        )


def _none(count: int) -> Longs:
    return np.full(count, -1, np.int64)

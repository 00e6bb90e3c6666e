"""Greedy outputs under a constraint by the shortest loop there is: transformers' logits, llguidance's mask, argmax.

Nothing of the engine is in it but how a constraint is put to llguidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from millrace.model_manager.grammars.compiling import _source
from millrace.model_manager.wire.constraint import Constraint

_AMPLE = LLParserLimits(
    initial_lexer_fuel=100_000_000,
    step_lexer_fuel=50_000_000,
    step_max_items=500_000,
    max_items_in_row=500_000,
    max_lexer_states=500_000,
    verbose_errors=False,
)


class ReferenceFailed(Exception):
    """llguidance cannot go on."""


@dataclass(frozen=True)
class Step:
    """What the loop knew when it took a token."""

    token: int
    gap: float
    """How far the token's logit is above the next that was allowed; infinite where none was."""
    forced: list[int]
    """Tokens that llguidance proposes here without a mask, as the text that must follow is written in one way."""


class Reference:
    """A model's folder, as transformers reads it."""

    def __init__(self, folder: Path) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model = model.eval()
        self._end: int = self._model.config.eos_token_id
        self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, self._model.config.vocab_size, self._end)

    @torch.inference_mode()
    def output(self, prompt: Sequence[int], constraint: Constraint, most: int) -> list[Step]:
        """Up to so many tokens, the one that ends the output among them. Raises ReferenceFailed."""
        matcher = LLMatcher(self._tokenizer, _source(constraint), log_level=0, limits=_AMPLE)
        steps: list[Step] = []
        found = self._model(torch.tensor([list(prompt)]), use_cache=True)
        while len(steps) < most and not matcher.is_stopped():
            steps.append(_step(matcher, found.logits[0, -1].numpy()))
            token = steps[-1].token
            if token == self._end:
                break
            matcher.consume_token(token)
            found = self._model(torch.tensor([[token]]), past_key_values=found.past_key_values, use_cache=True)
        if matcher.is_error():
            raise ReferenceFailed(matcher.get_error())
        return steps


def _step(matcher: LLMatcher, logits: Any) -> Step:
    forced = matcher.deep_copy().compute_ff_tokens()
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if matcher.is_error():
        raise ReferenceFailed(matcher.get_error())
    allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: len(logits)])
    if not len(allowed):
        raise ReferenceFailed("nothing may come")
    order = allowed[np.argsort(-logits[allowed], kind="stable")]
    gap = float(logits[order[0]] - logits[order[1]]) if len(order) > 1 else float("inf")
    return Step(int(order[0]), gap, forced)

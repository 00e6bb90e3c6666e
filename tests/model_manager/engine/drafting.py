"""Drafters whose guesses are right and wrong as a test wants, and a model that repeats itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List

import numpy as np
import torch

from millrace.model_manager.engine.interface import Longs
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.engine.speculation.drafts import Drafter, Policy, Speculation
from tests.model_manager.engine.history_runner import VOCAB_SIZE, EngineUnderTest, HistoryRunner, logits_after


def unrestrained(most_drafts: int) -> Policy:
    """Everybody gets so many drafts, whatever they cost."""
    return Policy(most_drafts, most_rows=math.inf, least_acceptance=0.0)


class Oracle:
    """Knows each request's whole output, and guesses it but for the places (request id, index) that are `wrong`."""

    def __init__(self, answers: Mapping[str, List[int]], wrong: Callable[[str, int], bool] = lambda *_: False) -> None:
        self._answers = answers
        self._wrong = wrong

    def draft(self, sequences: List[Sequence], counts: Longs) -> list[list[int]]:
        return [self._guess(sequence, int(count)) for sequence, count in zip(sequences, counts, strict=True)]

    def _guess(self, sequence: Sequence, count: int) -> list[int]:
        start, answer = sequence.num_output_tokens, self._answers[sequence.request_id]
        right = enumerate(answer[start : start + count], start)
        return [(token + self._wrong(sequence.request_id, index)) % VOCAB_SIZE for index, token in right]


class Fixed:
    """Guesses the same tokens always."""

    def __init__(self, *guess: int) -> None:
        self._guess = list(guess)

    def draft(self, _sequences: List[Sequence], counts: Longs) -> list[list[int]]:
        return [self._guess[:count] for count in counts]


def speculate(under_test: EngineUnderTest, drafter: Drafter, policy: Policy) -> None:
    """Have an engine speculate with that drafter."""
    engine = under_test.engine
    engine._speculation = Speculation(drafter, policy, engine._scheduler, engine._counters)


class RepeatingRunner(HistoryRunner):
    """Mostly a token is followed by what followed it before, so that text repeats; all of the history has its say."""

    def _logits(self, history: list[int]) -> torch.Tensor:
        return torch.full((VOCAB_SIZE,), torch.nan) if self._broken(history) else repeating_logits(history)


def repeating_logits(history: list[int]) -> torch.Tensor:
    """[V]"""
    habit = np.random.default_rng(history[-1]).normal(size=VOCAB_SIZE).astype(np.float32) * 4
    return torch.from_numpy(habit) + 0.2 * logits_after(history)

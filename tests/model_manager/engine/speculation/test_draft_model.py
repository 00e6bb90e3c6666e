"""Drafts of a smaller model: what it computes, and what becomes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from millrace.model_manager.engine.speculation.draft_model import DraftModel
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.drafting import speculate, unrestrained
from tests.model_manager.engine.history_runner import VOCAB_SIZE, EngineUnderTest, HistoryRunner, reference_tokens


class DraftRunner(HistoryRunner):
    """The target's logits. Where `wrong` is true for a history, another token is likeliest."""

    def __init__(self, num_blocks: int = 64, max_model_len: int = 256, every: int = 10**6) -> None:
        super().__init__(num_blocks, 8, max_model_len)
        self._every = every

    def _logits(self, history: list[int]) -> torch.Tensor:
        logits = super()._logits(history)
        return logits.roll(1) if len(history) % self._every == 0 else logits


def drafted(draft_runner: DraftRunner, num_drafts: int = 3, max_tokens: int = 64, **settings: Any) -> EngineUnderTest:
    under_test = EngineUnderTest(**settings)
    drafter = DraftModel(draft_runner, under_test.engine._table, max_tokens=max_tokens)
    speculate(under_test, drafter, unrestrained(num_drafts))
    return under_test


def request(request_id: str = "a", prompt: list[int] | None = None, **params: object) -> Request:
    return Request(request_id, prompt or [3, 1, 4], SamplingParams.parse({"ignore_eos": True, **params}))


def test_a_draft_model_that_agrees_has_all_its_drafts_accepted_greedy_and_sampled() -> None:
    for temperature in (0.0, 1.0):
        under_test = drafted(DraftRunner())
        asked = request(max_tokens=21, temperature=temperature)
        (output,) = under_test.run(asked)
        assert output.token_ids == reference_tokens(asked, 256)
        stats = under_test.engine.stats()
        assert stats.accepted_tokens == stats.drafted_tokens == 15
        assert len(under_test.runner.steps) == 6


def test_rejected_drafts_are_computed_again_as_what_they_became() -> None:
    """DraftRunner reads every past token back from its own cache: a wrong one left there would go on being wrong."""
    under_test = drafted(DraftRunner(every=5))
    requests = [request(str(n), [n + 1] * (n + 2), max_tokens=40, temperature=n / 2) for n in range(3)]
    for asked, output in zip(requests, under_test.run(*requests), strict=True):
        assert output.token_ids == reference_tokens(asked, 256)
    stats = under_test.engine.stats()
    assert abs(stats.accepted_tokens / stats.drafted_tokens - 0.5) < 0.05  # after none right come three, and so on


def test_each_token_is_computed_once_unless_it_was_wrong() -> None:
    runner = DraftRunner()
    drafted(runner).run(request(prompt=[7] * 20, max_tokens=21))
    positions = np.concatenate([step.positions for step in runner.steps])
    assert sorted(positions) == list(range(len(positions)))


def test_a_new_sequence_is_caught_up_with_within_the_budget_while_others_are_guessed_for() -> None:
    runner = DraftRunner()
    under_test = drafted(runner, max_tokens=10, max_num_batched_tokens=64)
    requests = [request("short", [5], max_tokens=40), request("long", [6] * 35, max_tokens=30)]
    for asked, output in zip(requests, under_test.run(*requests), strict=True):
        assert output.token_ids == reference_tokens(asked, 256)
    assert max(len(step.token_ids) for step in runner.steps) == 10
    assert under_test.engine.stats().accepted_tokens > 30


def test_preempted_sequences_are_computed_again_here_too() -> None:
    under_test = drafted(DraftRunner(6, every=7), runner=HistoryRunner(num_blocks=6))
    requests = [request(str(n), [n + 1] * 4, max_tokens=30, temperature=0.7) for n in range(3)]
    for asked, output in zip(requests, under_test.run(*requests), strict=True):
        assert output.token_ids == reference_tokens(asked, 48)
    assert under_test.engine.stats().preemptions > 0
    assert under_test.engine.stats().accepted_tokens > 0


def test_a_prompt_that_the_target_has_cached_is_computed_here() -> None:
    under_test = drafted(DraftRunner())
    asked = [request(name, [9] * 30, max_tokens=9) for name in "ab"]
    for each in asked:
        (output,) = under_test.run(each)
        assert output.token_ids == reference_tokens(each, 256)
    assert output.cached_tokens == 24
    stats = under_test.engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 0


def test_beyond_the_draft_models_positions_nothing_is_guessed() -> None:
    runner = DraftRunner(max_model_len=16)
    under_test = drafted(runner)
    (output,) = under_test.run(request(max_tokens=60))
    assert output.token_ids == reference_tokens(request(max_tokens=60), 256)
    assert max(step.positions.max() for step in runner.steps) <= 15
    assert 0 < under_test.engine.stats().drafted_tokens < 20


def test_guesses_are_tokens_even_where_the_draft_models_logits_are_not_finite() -> None:
    runner = HistoryRunner(broken=lambda history: len(history) % 3 == 0)
    under_test = EngineUnderTest()
    speculate(under_test, DraftModel(runner, under_test.engine._table, max_tokens=64), unrestrained(3))
    asked = request(max_tokens=30, temperature=1.0)
    (output,) = under_test.run(asked)
    assert output.token_ids == reference_tokens(asked, 256)
    assert all(0 <= token < VOCAB_SIZE for step in under_test.runner.steps for token in step.token_ids)

"""Drafts: that outputs do not depend on them, and when they are worth their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.engine.speculation.drafts import Drafter, Policy
from millrace.model_manager.engine.speculation.prompt_lookup import PromptLookup
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.drafting import Fixed, Oracle, RepeatingRunner, speculate, unrestrained
from tests.model_manager.engine.history_runner import (
    EOS,
    VOCAB_SIZE,
    EngineUnderTest,
    HistoryRunner,
    logits_after,
    reference_tokens,
)

FOUR = unrestrained(4)


def request(request_id: str = "a", prompt: list[int] | None = None, **params: object) -> Request:
    return Request(request_id, prompt or [3, 1, 4], SamplingParams.parse({"ignore_eos": True, **params}))


def speculating(drafter: Drafter, policy: Policy = FOUR, **settings: Any) -> EngineUnderTest:
    under_test = EngineUnderTest(**settings)
    speculate(under_test, drafter, policy)
    return under_test


def answers(*requests: Request) -> dict[str, list[int]]:
    return {asked.request_id: reference_tokens(asked, 256) for asked in requests}


def test_right_drafts_save_steps() -> None:
    asked = request(max_tokens=21)
    under_test = speculating(Oracle(answers(asked)))
    (output,) = under_test.run(asked)
    assert output.token_ids == reference_tokens(asked, 256)
    assert len(under_test.runner.steps) == 1 + 4
    stats = under_test.engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens, stats.generated_tokens) == (16, 16, 21)
    assert under_test.progress["a"] == output.token_ids[:16]  # the last step's are in the output


MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.2, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.8, "seed": 3},
    {"stop_token_ids": [7, 9]},
    {"ignore_eos": False, "temperature": 0.4},
    {"max_tokens": 3},
    {"stop": ["ab", "ch", "tu"], "temperature": 0.5},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.5, "frequency_penalty": 0.4, "temperature": 0.8},
    {"min_tokens": 12, "ignore_eos": False, "temperature": 0.6},
    {"logit_bias": {4: 2.0}, "bad_words": ["c"], "min_p": 0.1, "temperature": 1.0},
    {"logprobs": 2, "temperature": 0.3},
]


def letters() -> Tokenizer:
    """Token n is the n-th letter."""
    tokenizer = Tokenizer(WordLevel({chr(ord("a") + n): n for n in range(VOCAB_SIZE)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


@pytest.mark.parametrize("num_drafts", [1, 5])
def test_outputs_of_mixed_requests_are_those_without_speculation(num_drafts: int) -> None:
    plain, accepted = answered(0)
    assert accepted == 0
    speculated, accepted = answered(num_drafts)
    assert speculated == plain
    assert accepted > 30
    assert {output[1] for output in plain} == {FinishReason.STOP, FinishReason.LENGTH}


def answered(num_drafts: int) -> tuple[list[tuple[Any, ...]], int]:
    """Answers with prompt lookup, in a cache where sequences are preempted and prompts are reused."""
    runner = RepeatingRunner(num_blocks=20)
    under_test = EngineUnderTest(
        runner, stop_rules=StopRules(frozenset([EOS]), letters()), max_num_seqs=6, max_num_batched_tokens=64
    )
    if num_drafts:
        speculate(under_test, PromptLookup(under_test.engine._table), unrestrained(num_drafts))
    requests = [
        request(f"{n}-{repeat}", [1 + n] * 9 + [2, 3, 2], **{"max_tokens": 24, **params})
        for repeat in range(2)
        for n, params in enumerate(MIXED)
    ]
    outputs = under_test.run(*requests)
    assert under_test.engine.stats().preemptions > 0
    assert any(output.cached_tokens for output in outputs)
    return [described(output) for output in outputs], under_test.engine.stats().accepted_tokens


def described(output: Output) -> tuple[Any, ...]:
    return output.token_ids, output.finish_reason, output.stop_reason, output.logprobs


@pytest.mark.parametrize("at", [3, 4, 5, 6])
def test_an_end_within_accepted_drafts_ends_there(at: int) -> None:
    endless = request(max_tokens=30)
    token = reference_tokens(endless, 256)[at]
    asked = request(max_tokens=30, stop_token_ids=[token])
    under_test = speculating(Oracle(answers(endless)))
    (output,) = under_test.run(asked)
    assert output.token_ids == reference_tokens(asked, 256)
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, token)


def test_no_draft_lies_beyond_the_last_token() -> None:
    asked = request(max_tokens=9)
    under_test = speculating(Fixed(1, 2, 3, 4), runner=HistoryRunner(max_model_len=32))
    (output,) = under_test.run(asked, request("long", [5] * 25, max_tokens=100))[:1]
    assert len(output.token_ids) == 9
    assert max(step.positions.max() for step in under_test.runner.steps) == 30  # 32 tokens, the last is only sampled


def test_what_a_wrong_draft_would_have_led_to_may_be_broken() -> None:
    asked, right = request(max_tokens=20), reference_tokens(request(max_tokens=20), 256)

    def untrue(history: list[int]) -> bool:
        return history[3:] != right[: len(history) - 3]

    under_test = speculating(
        Oracle(answers(asked), wrong=lambda _, index: index % 4 == 2), runner=HistoryRunner(broken=untrue)
    )
    (output,) = under_test.run(asked)
    assert output.token_ids == right
    (again,) = under_test.run(request("again", [3, 1, 4, *right[:-1]], max_tokens=1))
    assert again.cached_tokens == 16  # the prefix cache holds all that was right


def test_nobody_is_preempted_for_a_draft() -> None:
    asked = [request(str(n), [n + 1] * 12, max_tokens=20) for n in range(2)]  # 4 blocks each
    wrong = Oracle(answers(*asked), wrong=lambda *_: True)
    under_test = speculating(wrong, runner=HistoryRunner(num_blocks=8))
    for each, output in zip(asked, under_test.run(*asked), strict=True):
        assert output.token_ids == reference_tokens(each, 256)
    assert under_test.engine.stats().preemptions == 0
    assert under_test.engine.stats().drafted_tokens > 0


def test_drafts_take_no_block_that_running_sequences_may_need() -> None:
    under_test = speculating(Fixed(1, 2, 3, 4), runner=HistoryRunner(num_blocks=4))
    for n in range(2):
        under_test.engine.add(request(str(n), [1] * 7, max_tokens=4))
    under_test.step()
    assert under_test.blocks.num_free == 2
    under_test.step()
    assert [len(step.token_ids) for step in under_test.runner.steps] == [14, 2]


def test_the_first_drafts_of_all_come_before_the_second_of_any_within_the_rows() -> None:
    policy = Policy(most_drafts=3, most_rows=8, least_acceptance=0.0)
    requests = [request(str(n), [n + 1], max_tokens=20) for n in range(3)]
    under_test = speculating(Oracle(answers(*requests)), policy)
    for each in requests:
        under_test.engine.add(each)
    under_test.step()
    under_test.step()
    assert np.diff(under_test.runner.steps[-1].query_starts).tolist() == [3, 3, 2]


def test_a_full_batch_gets_no_drafts() -> None:
    policy = Policy(most_drafts=3, most_rows=4, least_acceptance=0.0)
    requests = [request(str(n), [n + 1], max_tokens=10) for n in range(4)]
    under_test = speculating(Oracle(answers(*requests)), policy)
    under_test.run(*requests)
    assert under_test.engine.stats().drafted_tokens == 0


def test_whose_drafts_are_wrong_gets_fewer() -> None:
    asked = request(max_tokens=100)
    policy = Policy(most_drafts=2, most_rows=16, least_acceptance=0.25)
    wrong = speculating(Oracle(answers(asked), wrong=lambda *_: True), policy)
    right = speculating(Oracle(answers(asked)), policy)
    wrong.run(asked)
    right.run(asked)
    assert wrong.engine.stats().drafted_tokens < 20
    assert right.engine.stats().accepted_tokens > 60


def test_sampled_tokens_follow_the_models_distribution_whatever_is_guessed() -> None:
    """Pearson's chi-square over the tokens at index 1, which are all verified against a draft."""
    logits = logits_after([1, 2, 3])

    class Constant(HistoryRunner):
        def _logits(self, _history: list[int]) -> torch.Tensor:
            return logits

    likely = int(logits.argmax())
    under_test = speculating(
        Fixed(likely, 5),
        unrestrained(2),
        runner=Constant(num_blocks=256),
        max_num_seqs=64,
        max_num_batched_tokens=256,
    )
    count = 1500
    requests = [request(str(n), [1], max_tokens=4, temperature=1.0, seed=n) for n in range(count)]
    outputs = under_test.run(*requests)
    expected = torch.softmax(logits, 0).numpy() * count
    for index in (1, 2, 3):
        observed = np.bincount([output.token_ids[index] for output in outputs], minlength=VOCAB_SIZE)
        common = expected >= 5  # the test's own condition; the others together are one more class
        cells = (
            np.append(observed[common], observed[~common].sum()),
            np.append(expected[common], expected[~common].sum()),
        )
        chi_square = float(((cells[0] - cells[1]) ** 2 / cells[1]).sum())
        assert chi_square < 46.8  # exceeded once in a thousand with 21 degrees of freedom, less often with fewer
    assert under_test.engine.stats().accepted_tokens > count / 4

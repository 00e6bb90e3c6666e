"""An engine's readings of prompts, on a runner whose every number depends on the whole history."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.engine.scheduling import prompt_outputs
from millrace.model_manager.engine.scheduling.readings import EmbedReading, ScoreReading, Scores
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.history_runner import (
    VOCAB_SIZE,
    EngineUnderTest,
    HistoryRunner,
    hidden_after,
    logits_after,
    reference_tokens,
)


def score(name: str, tokens: list[int], first: int) -> Request:
    return Request(name, tokens, SamplingParams(), task="score", score_from=first)


def embed(name: str, tokens: list[int], **fields: Any) -> Request:
    return Request(name, tokens, SamplingParams(), task="embed", **fields)


def generate(name: str, tokens: list[int], **params: Any) -> Request:
    return Request(name, tokens, SamplingParams(ignore_eos=True, **params))


def tokens_of(length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng([seed, length]).integers(1, VOCAB_SIZE, length).tolist()
    return tokens


def check_scores(output: Output, tokens: list[int], first: int, num_top: int = 0) -> None:
    logprobs = torch.stack([logits_after(tokens[:index]) for index in range(first, len(tokens))]).log_softmax(-1)
    chosen = logprobs[torch.arange(len(tokens) - first), tokens[first:]]
    got = output.prompt_logprobs
    assert got is not None
    np.testing.assert_allclose(got.logprobs, chosen, atol=1e-5)
    assert got.greedy == [token == best for token, best in zip(tokens[first:], logprobs.argmax(-1), strict=True)]
    assert len(got.top_token_ids) == (len(tokens) - first if num_top else 0)
    if num_top:
        top = logprobs.topk(num_top)
        assert got.top_token_ids == top.indices.tolist()
        np.testing.assert_allclose(got.top_logprobs, top.values, atol=1e-5)


def check_embedding(output: Output, request: Request) -> None:
    tokens = request.prompt_token_ids
    states = [hidden_after(tokens[: end + 1]) for end in range(len(tokens))]
    wanted = states[-1] if request.pooling == "last" else torch.stack(states).mean(dim=0)
    if request.normalize:
        wanted = wanted / wanted.norm()
    assert output.embedding is not None
    np.testing.assert_allclose(np.frombuffer(output.embedding, "<f4"), wanted, atol=1e-5)


def check(output: Output, request: Request) -> None:
    if request.task == "score":
        check_scores(output, request.prompt_token_ids, request.score_from)
    elif request.task == "embed":
        check_embedding(output, request)
    else:
        assert output.token_ids == reference_tokens(request, 256)
        if request.params.prompt_logprobs is not None:
            check_scores(output, request.prompt_token_ids, 1, request.params.prompt_logprobs)


def test_a_score_and_an_embedding_end_without_a_token() -> None:
    outputs = EngineUnderTest().run(score("s", [3, 1, 4, 1, 5], 2), embed("e", [3, 1, 4]))
    assert [(output.finish_reason, output.token_ids) for output in outputs] == [(FinishReason.STOP, [])] * 2
    assert [output.prompt_tokens for output in outputs] == [5, 3]
    check_scores(outputs[0], [3, 1, 4, 1, 5], 2)
    check_embedding(outputs[1], embed("e", [3, 1, 4]))


@pytest.mark.parametrize("first", [1, 7, 8, 9, 39])
def test_tokens_of_the_cache_are_reused_up_to_the_first_that_is_read(first: int) -> None:
    under_test, tokens = EngineUnderTest(), tokens_of(40)
    under_test.run(generate("before", tokens, max_tokens=3))
    (output,) = under_test.run(score("s", tokens, first))
    check_scores(output, tokens, first)
    assert output.cached_tokens == (first - 1) // 8 * 8


def test_a_mean_needs_every_token_and_the_last_only_itself() -> None:
    under_test, tokens = EngineUnderTest(), tokens_of(40)
    under_test.run(generate("before", tokens, max_tokens=3))
    for pooling, cached in (("mean", 0), ("last", 32)):
        asked = embed(pooling, tokens, pooling=pooling)
        (output,) = under_test.run(asked)
        check_embedding(output, asked)
        assert output.cached_tokens == cached


def test_what_a_score_computed_is_reused() -> None:
    under_test, tokens = EngineUnderTest(), tokens_of(40)
    under_test.run(score("s", tokens, 30))
    (output,) = under_test.run(generate("g", tokens, max_tokens=2))
    assert output.cached_tokens == 32
    assert output.token_ids == reference_tokens(generate("g", tokens, max_tokens=2), 256)


@pytest.mark.parametrize("num_top", [0, 3, 20])
def test_a_generation_gives_the_log_probabilities_of_its_prompt(num_top: int) -> None:
    asked = generate("g", tokens_of(40), max_tokens=4, prompt_logprobs=num_top)
    (output,) = EngineUnderTest(max_num_batched_tokens=7).run(asked)
    check(output, asked)


def test_a_prompt_of_one_token_has_nothing_to_be_scored() -> None:
    (output,) = EngineUnderTest().run(generate("g", [3], max_tokens=2, prompt_logprobs=1))
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs.logprobs == []


def test_an_engine_that_takes_over_a_generation_reads_its_prompt_again() -> None:
    asked = generate("g", tokens_of(20), max_tokens=4, prompt_logprobs=2)
    whole = reference_tokens(asked, 256)
    for known in (whole[:2], whole):
        resumed = Request("g", asked.prompt_token_ids, asked.params, output_token_ids=known)
        (output,) = EngineUnderTest().run(resumed)
        check(output, asked)


def test_an_aborted_score_has_none() -> None:
    under_test = EngineUnderTest(max_num_batched_tokens=8)
    under_test.engine.add(score("s", tokens_of(40), 1))
    under_test.step()
    under_test.engine.abort("s")
    output = under_test.finish()["s"]
    assert (output.finish_reason, output.prompt_logprobs) == (FinishReason.ABORT, None)


def test_values_that_are_not_finite_fail_their_request_alone() -> None:
    bad = tokens_of(20, seed=1)
    runner = HistoryRunner(broken=lambda history: history == bad[: len(history)] and len(history) in (9, 20))
    under_test = EngineUnderTest(runner, max_num_batched_tokens=8)
    for request in (
        score("score", bad, 5),
        embed("mean", bad, pooling="mean"),
        embed("last", bad),
        generate("generate", bad, prompt_logprobs=0, max_tokens=1),
        score("before", bad[:8], 5),
        score("good", tokens_of(20), 5),
    ):
        under_test.engine.add(request)
    outputs = under_test.finish()
    assert set(under_test.failures.values()) == {"NonFiniteLogits"}
    assert under_test.failures.keys() == {"score", "mean", "last", "generate"}
    check_scores(outputs["good"], tokens_of(20), 5)
    (after,) = under_test.run(generate("after", [*bad[:16], 3], max_tokens=1))
    assert after.cached_tokens == 8  # of `before`, which was sound


def test_logits_of_few_rows_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_outputs, "MOST_LOGITS", 3 * VOCAB_SIZE)
    sizes: list[int] = []

    class Counting(HistoryRunner):
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            sizes.append(len(hidden))
            return super().logits(hidden)

    tokens = tokens_of(15)
    for output in EngineUnderTest(Counting()).run(score("a", tokens, 10), score("b", tokens, 12)):
        check_scores(output, tokens, 10 if output.request_id == "a" else 12)
    assert sum(sizes) == 5 + 3
    assert max(sizes) == 3


_LENGTHS = st.integers(2, 40)
_REQUESTS = st.lists(
    st.tuples(st.sampled_from(["score", "last", "mean", "generate", "prompt_logprobs"]), _LENGTHS, st.integers(1, 39)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=40)
@given(asked=_REQUESTS, budget=st.integers(3, 24), num_blocks=st.integers(14, 24), caching=st.booleans())
def test_in_any_company_chunked_preempted_and_cached_all_are_as_alone(
    asked: list[tuple[str, int, int]], budget: int, num_blocks: int, caching: bool
) -> None:
    runner = HistoryRunner(num_blocks=num_blocks, block_size=4, max_model_len=256)
    under_test = EngineUnderTest(runner, max_num_seqs=3, max_num_batched_tokens=budget, prefix_caching=caching)
    requests = []
    for number, (kind, length, first) in enumerate(asked):
        name, tokens = str(number), [1 + n % 5 for n in range(length)]
        if kind == "score":
            requests.append(score(name, tokens, 1 + first % (length - 1)))
        elif kind in ("last", "mean"):
            requests.append(embed(name, tokens, pooling=kind, normalize=bool(first % 2)))
        else:
            top = first % 4 if kind == "prompt_logprobs" else None
            requests.append(generate(name, tokens, max_tokens=1 + first % 12, prompt_logprobs=top))
    for output, request in zip(under_test.run(*requests), requests, strict=True):
        check(output, request)


def test_a_preempted_score_keeps_what_it_has_read() -> None:
    runner = HistoryRunner(num_blocks=13, block_size=4)
    under_test = EngineUnderTest(runner, max_num_seqs=2, max_num_batched_tokens=3, prefix_caching=False)
    early = generate("early", tokens_of(4), max_tokens=30)
    under_test.engine.add(early)
    under_test.step()
    under_test.engine.add(score("late", tokens_of(40), 1))
    outputs = under_test.finish()
    assert under_test.engine.stats().preemptions >= 1
    check_scores(outputs["late"], tokens_of(40), 1)
    check(outputs["early"], early)
    assert sum(len(step.hidden_rows) for step in runner.steps) == 39


def test_rows_are_counted_from_the_chunk() -> None:
    reading = ScoreReading(list(range(10)), 4, num_top=0)
    assert (list(reading.rows(0, 3)), list(reading.rows(0, 5)), list(reading.rows(3, 9))) == ([], [3, 4], [*range(6)])
    empty = np.zeros((2, 0))
    reading.add(Scores(np.zeros(2, np.float32), np.ones(2, bool), empty.astype(np.int64), empty.astype(np.float32)))
    assert (list(reading.rows(0, 4)), list(reading.rows(0, 7)), reading.targets(2)) == ([], [5, 6], [6, 7])


def test_a_vector_of_zeros_stays_one() -> None:
    reading = EmbedReading(2, "last", normalize=True)
    reading.add(np.zeros(3), 1)
    assert np.frombuffer(reading.result(), "<f4").tolist() == [0, 0, 0]

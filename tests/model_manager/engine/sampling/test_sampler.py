from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.engine.sampling import cpu_sampling
from millrace.model_manager.engine.sampling.logit_rows import SamplingRows
from millrace.model_manager.engine.sampling.random_numbers import uniforms
from millrace.model_manager.engine.sampling.sampler import Sampler
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.sampling_cases import Case, case, indexed, rows_of

NAN, INF = float("nan"), float("inf")


def rows(count: int, index: int = 0, **params: Any) -> SamplingRows:
    """Rows that differ in the index of their token only."""
    return indexed(case(**{"temperature": 1.0} | params), np.arange(count) + index)


def draws(logits: list[float], count: int = 20_000, **params: Any) -> npt.NDArray[np.float64]:
    """How often each token is drawn."""
    batch = torch.tensor(logits).expand(count, -1)
    sampled = Sampler().sample(batch, rows(count, **params))
    frequencies: npt.NDArray[np.float64] = np.bincount(sampled.token_ids, minlength=len(logits)) / count
    return frequencies


def softmax(logits: list[float]) -> npt.NDArray[np.float64]:
    weights = np.exp(np.array(logits) - max(logits))
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


def test_greedy_takes_the_likeliest_token_of_each_row() -> None:
    samples = Sampler().sample(torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, -INF]]), rows(2, temperature=0.0))
    assert samples.token_ids == [1, 0]
    assert samples.finite == [True, True]


def test_frequencies_follow_the_softmax() -> None:
    logits = [0.0, 1.0, -1.0, 2.0]
    assert draws(logits) == pytest.approx(softmax(logits), abs=0.01)


def test_temperature_divides_the_logits() -> None:
    assert draws([0.0, 1.0, 2.0], temperature=2.0) == pytest.approx(softmax([0.0, 0.5, 1.0]), abs=0.01)
    assert draws([0.0, 1.0, 1.1], temperature=0.001).tolist() == [0.0, 0.0, 1.0]
    assert draws([0.0, 1.0, 1.1], temperature=1e-30).tolist() == [0.0, 0.0, 1.0]


def test_top_k_leaves_the_k_likeliest() -> None:
    found = draws([0.0, 3.0, 1.0, 2.0], top_k=2)
    assert found[[0, 2]].tolist() == [0.0, 0.0]
    assert found[[1, 3]] == pytest.approx(softmax([3.0, 2.0]), abs=0.01)


def test_top_k_keeps_equals_together_and_may_exceed_the_vocabulary() -> None:
    assert (draws([1.0, 1.0, 0.0], top_k=1) > 0).tolist() == [True, True, False]
    assert (draws([1.0, 1.0, 0.0], top_k=9) > 0).all()


def test_top_p_leaves_the_fewest_that_reach_it() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert (draws(logits, top_p=0.45) > 0).tolist() == [True, False, False, False]
    assert (draws(logits, top_p=0.55) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, top_p=0.85) > 0).tolist() == [True, True, True, False]
    assert (draws(logits, top_p=1e-9) > 0).tolist() == [True, False, False, False]


def test_top_p_counts_what_top_k_leaves() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    assert (draws(logits, top_k=2, top_p=0.6) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, top_k=2, top_p=0.5) > 0).tolist() == [True, False, False, False]


def test_top_p_looks_as_far_down_a_flat_distribution_as_it_must() -> None:
    logits = [1.0 - 1e-4 * n for n in range(3000)]
    kept = np.flatnonzero(draws(logits, count=300, top_p=0.9))
    total = np.cumsum(softmax(logits))
    assert kept.max() <= np.searchsorted(total, 0.9)
    assert kept.max() > 2300


def test_a_token_ruled_out_is_never_drawn() -> None:
    assert draws([-INF, 0.0, -INF, 0.0, -INF])[[0, 2, 4]].tolist() == [0.0, 0.0, 0.0]


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 5.0, 0.0]]).expand(200, -1)
    mixed = rows_of([case(seed=n, temperature=50.0 * (n >= 100)) for n in range(200)])
    tokens = Sampler().sample(logits, mixed).token_ids
    assert set(tokens[:100]) == {1}
    assert set(tokens[100:]) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_rows_that_are_not_finite_are_told_apart_and_disturb_no_other(temperature: float, top_p: float) -> None:
    sound = [0.0, 9.0, 1.0, 2.0]
    logits = torch.tensor([sound, [0.0, NAN, 1.0, 2.0], [INF, 0.0, 0.0, 0.0], [-INF] * 4, [-INF, 9.0, -INF, -INF]])
    samples = Sampler().sample(logits, rows(5, temperature=temperature, top_k=3, top_p=top_p))
    assert samples.finite == [True, False, False, False, True]
    assert samples.token_ids[0] == samples.token_ids[4] == 1
    assert all(0 <= token < 4 for token in samples.token_ids)


@given(st.data())
@settings(max_examples=60)
def test_a_rows_token_does_not_depend_on_its_company(data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([3, 50, 2000]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    scale = data.draw(st.sampled_from([0.0, 1.0, 10.0]))
    count = data.draw(st.integers(1, 8))
    # bfloat16 logits are often equal
    logits = torch.from_numpy(generator.normal(scale=scale, size=(count, vocab))).bfloat16().float()
    cases = [
        case(
            temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 5.0])),
            top_k=data.draw(st.sampled_from([0, 1, 5, 40, 5000])),
            top_p=data.draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
            seed=data.draw(st.integers(0, 2**63 - 1)),
            output=data.draw(st.lists(st.integers(0, vocab - 1), max_size=9)),
            prompt=data.draw(st.lists(st.integers(0, vocab - 1), max_size=9)),
            min_p=data.draw(st.sampled_from([0.0, 0.0, 0.01, 0.3])),
            typical_p=data.draw(st.sampled_from([1.0, 1.0, 0.9, 0.2])),
            repetition_penalty=data.draw(st.sampled_from([1.0, 1.0, 1.3, 0.5])),
            presence_penalty=data.draw(st.sampled_from([0.0, 0.0, 1.5, -0.5])),
            frequency_penalty=data.draw(st.sampled_from([0.0, 0.0, 0.4, -2.0])),
            logit_bias=data.draw(st.dictionaries(st.integers(0, vocab - 1), st.floats(-100, 100), max_size=3)),
            allowed_token_ids=data.draw(st.none() | st.lists(st.integers(0, vocab - 1), min_size=1, max_size=9)),
        )
        for _ in range(count)
    ]
    together = Sampler().sample(logits, rows_of(cases)).token_ids
    alone = [Sampler().sample(logits[n : n + 1], rows_of([each])).token_ids[0] for n, each in enumerate(cases)]
    assert together == alone
    assert together == [reference(logits[n].numpy(), each) for n, each in enumerate(cases)]


def reference(logits: npt.NDArray[np.float32], row: Case) -> int:
    """One row, by the book: edit, sort, cut, accumulate, invert."""
    params = row.params
    logits = edited(logits, row)
    if params.temperature == 0:
        return int(logits.argmax())
    weights = kept(logits, params)
    cumulative = np.cumsum(weights)
    seed, index = np.array([row.seed], np.uint64), np.array([len(row.output)])
    return int(np.searchsorted(cumulative, uniforms(seed, index)[0] * cumulative[-1], side="right"))


def edited(logits: npt.NDArray[np.float32], row: Case) -> npt.NDArray[np.float32]:
    params, logits = row.params, logits.copy()
    for token in {*row.prompt, *row.output}:
        penalty = np.float32(params.repetition_penalty)
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token in set(row.output):
        logits[token] -= np.float32(row.output.count(token)) * np.float32(params.frequency_penalty)
        logits[token] -= np.float32(params.presence_penalty)
    for token, bias in params.logit_bias.items():
        logits[token] += np.float32(bias)
    if params.allowed_token_ids is not None:
        forbidden = np.ones(len(logits), bool)
        forbidden[list(params.allowed_token_ids)] = False
        logits[forbidden] = -INF
    return logits


def kept(logits: npt.NDArray[np.float32], params: SamplingParams) -> npt.NDArray[np.float64]:
    """Weights of the tokens, 0 for those that are cut."""
    scaled = (logits - logits.max()) / np.float32(params.temperature)
    weights = np.exp(scaled, dtype=np.float32).astype(np.float64)
    if 0 < params.top_k < len(logits):
        weights[logits < np.sort(logits)[-params.top_k]] = 0.0
    weights = share_of(weights, logits, params.top_p)
    weights[weights < params.min_p] = 0.0
    if params.typical_p < 1:
        information = np.where(weights > 0, -scaled, 0.0).astype(np.float64)
        entropy = (weights * information).sum() / weights.sum()
        weights = share_of(weights, -np.abs(information - entropy), params.typical_p)
    return weights


def share_of(
    weights: npt.NDArray[np.float64], ranks: npt.NDArray[np.floating[Any]], share: float
) -> npt.NDArray[np.float64]:
    if share >= 1:
        return weights
    ranks = np.where(weights > 0, ranks, -INF)
    order = np.argsort(-ranks, kind="stable")
    reached = np.searchsorted(np.cumsum(weights[order]), share * weights.sum())
    return np.where(ranks < ranks[order[min(reached, len(order) - 1)]], 0.0, weights)


def test_torch_samples_what_the_cpus_kernel_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, sampler = torch.zeros(2, 8), Sampler()
    logits[:, 3] = 5.0
    monkeypatch.setattr(cpu_sampling, "UNREAD", {"min_p": 0.0})

    def kernel(*_given: object) -> None:
        raise AssertionError("the kernel would ignore a parameter")

    monkeypatch.setattr(cpu_sampling.CpuSampling, "sample", kernel)
    plain, unknown = case(seed=1), case(seed=2, temperature=1.0, min_p=0.5)
    assert sampler.sample(logits, rows_of([plain, unknown])).token_ids == [3, 3]
    with pytest.raises(AssertionError):
        sampler.sample(logits, rows_of([plain, plain]))

"""The compiled sampling kernel on logits of every shape: flat, peaked, tied, ruled out, and any vocabulary.

What it draws is compared with torch's whole-row operations, which sort.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]

from millrace.model_manager.engine.sampling.cpu_sampling import CpuSampling
from millrace.model_manager.engine.sampling.logit_rows import SamplingRows
from millrace.model_manager.engine.sampling.sampler import Sampler, launch_by_torch
from millrace.model_manager.engine.sampling.torch_sampling import filtered_weights
from tests.model_manager.engine.sampling_cases import case, indexed, rows_of

OPT, QWEN = 50_272, 151_936
COUNT = 12
CUTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "top_k": {"top_k": 50},
    "many": {"top_k": 5000},
    "top_p": {"top_p": 0.9},
    "little": {"top_p": 0.05},
    "nearly all": {"top_p": 0.999},
    "min_p": {"min_p": 0.02},
    "tiny min_p": {"min_p": 1e-9, "top_p": 0.7},
    "typical_p": {"typical_p": 0.8},
    "all": {"top_k": 3000, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.9},
    "no k": {"top_p": 0.95, "min_p": 0.01, "typical_p": 0.9},
}


def normal(scale: float, vocab: int = OPT, count: int = COUNT) -> torch.Tensor:
    generator = np.random.default_rng(int(10 * scale) + vocab)
    return torch.from_numpy((generator.normal(size=(count, vocab)) * scale).astype(np.float32))


def rows(count: int, **params: Any) -> SamplingRows:
    return indexed(case(**{"temperature": 0.8} | params), np.arange(count))


def assert_as_torch(logits: torch.Tensor, sampled: SamplingRows, differences: int = 1) -> None:
    """`differences` rows may differ: sums in another order may move a limit."""
    compiled, plain = Sampler().sample(logits, sampled), launch_by_torch(logits, sampled).get()
    differing = sum(one != other for one, other in zip(compiled.token_ids, plain.token_ids, strict=True))
    assert differing <= differences
    assert (compiled.finite, compiled.possible) == (plain.finite, plain.possible)


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("scale", [0.0, 0.01, 0.5, 1.0, 2.0, 4.0, 12.0])
def test_logits_of_any_scale_are_cut_as_torch_cuts_them(name: str, scale: float) -> None:
    assert_as_torch(normal(scale, 20_000), rows(COUNT, **CUTS[name]))


@pytest.mark.parametrize("name", ["nothing", "top_p", "min_p", "all"])
@pytest.mark.parametrize("vocab", [OPT, QWEN])
def test_the_vocabularies_of_real_models_are_sampled(name: str, vocab: int) -> None:
    assert_as_torch(normal(1.0, vocab, 4), rows(4, **CUTS[name]))


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 2048, 8193])
def test_a_vocabulary_of_any_size_is_seen_to_its_end(vocab: int) -> None:
    logits = normal(0.5, vocab, 2)
    logits[1, -1] = 50.0
    greedy = rows(2, temperature=0.0, logprobs=min(vocab, 3))
    samples = Sampler().sample(logits, greedy)
    assert samples.token_ids == logits.argmax(dim=-1).tolist()
    assert samples.logprobs[0].top_token_ids == [logits[0].topk(min(vocab, 3)).indices.tolist()]
    for params in CUTS.values():
        assert Sampler().sample(logits, rows(2, **params)).token_ids[1] == vocab - 1


def test_the_first_of_equals_is_the_greedy_token() -> None:
    logits = torch.zeros(40, 3000)
    places = [(3 * n, 3 * n + 61 * n) for n in range(1, 40)]
    for row, (first, second) in enumerate(places):
        logits[row, [first, second]] = 1.0
    assert Sampler().sample(logits, rows(40, temperature=0.0)).token_ids == [*(first for first, _ in places), 0]


@pytest.mark.parametrize("name", CUTS)
def test_equal_logits_are_kept_or_cut_together(name: str) -> None:
    steps = np.random.default_rng(5).integers(0, 6, (COUNT, 9000)).astype(np.float32)
    assert_as_torch(torch.from_numpy(steps), rows(COUNT, temperature=1.5, **CUTS[name]), differences=0)


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 100.0])
def test_extreme_temperatures_are_followed(name: str, temperature: float) -> None:
    assert_as_torch(normal(1.0, 9000), rows(COUNT, temperature=temperature, **CUTS[name]))


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("least", [-float("inf"), float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("left", [1, 2, 100, 5000])
def test_a_row_whose_tokens_are_mostly_ruled_out_is_drawn_from_the_rest(name: str, least: float, left: int) -> None:
    logits = normal(1.0, 9000)
    chosen = np.random.default_rng(left).permutation(9000)[left:]
    logits[:, torch.from_numpy(chosen)] = least
    assert_as_torch(logits, rows(COUNT, **CUTS[name]))


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("left", [64, 300])
def test_the_few_that_are_not_ruled_out_may_lie_together(name: str, left: int) -> None:
    logits = torch.full((COUNT, 9000), -float("inf"))
    logits[:, 2048 : 2048 + left] = normal(0.5, left)
    assert_as_torch(logits, rows(COUNT, **CUTS[name]), differences=0)


@pytest.mark.parametrize("name", CUTS)
def test_the_one_token_that_is_allowed_comes(name: str) -> None:
    cases = [case(seed=n, temperature=1.0, allowed_token_ids=[4000 + n], **CUTS[name]) for n in range(COUNT)]
    assert Sampler().sample(normal(2.0, 9000), rows_of(cases)).token_ids == [4000 + n for n in range(COUNT)]


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("level", [-30.0, -3.0, 3.0])
def test_a_row_that_a_sample_of_it_misrepresents_is_cut_exactly(level: float, share: float) -> None:
    """Every 16th vector of 16 tokens is unlike all others; in half of the rows those that the kernel estimates from."""
    logits = normal(1.0, 20_000, 16)
    place = torch.arange(20_000) // 16 % 16
    for row in range(16):
        logits[row] += torch.where(place == row * (row % 2), level, 0.0)
    assert_as_torch(logits, rows(16, top_p=share))


@pytest.mark.parametrize("place", [0, 1023, 1024, 8999])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_found_wherever_it_is(place: int, bad: float) -> None:
    logits = normal(1.0, 9000, 3)
    logits[1, place] = bad
    for params in ({"temperature": 0.0}, {"top_p": 0.9}, {"allowed_token_ids": [5]}):
        samples = Sampler().sample(logits, rows_of([case(seed=n, **params) for n in range(3)]))
        assert samples.finite == [True, False, True]


_AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+popcnt,+bmi,+bmi2,+sse4.2"}
_CHECK = """
from tests.model_manager.engine.sampling import test_sampling_shapes as tests
for name in tests.CUTS:
    for scale in (0.5, 4.0):
        tests.test_logits_of_any_scale_are_cut_as_torch_cuts_them(name, scale)
    tests.test_equal_logits_are_kept_or_cut_together(name)
"""


@pytest.mark.slow
@pytest.mark.skipif("+avx2" not in get_host_cpu_features().flatten(), reason="needs a processor with AVX2")
def test_the_kernel_of_a_processor_without_avx512_cuts_the_same(tmp_path: Path) -> None:
    environment = os.environ | _AVX2 | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _CHECK], env=environment, cwd=Path(__file__).parents[4], check=True)


def tokens_by(threads: int, logits: npt.NDArray[np.float32], sampled: SamplingRows) -> list[int]:
    token_ids: list[int] = CpuSampling(threads).sample(logits, sampled).token_ids.tolist()
    return token_ids


def test_any_number_of_threads_draws_the_same() -> None:
    logits = normal(1.0, 9000, 2 * len(CUTS)).numpy()
    history = list(range(50))
    cases = [
        case(history, history[:9], n, temperature=1.0, repetition_penalty=1.0 + n % 2, **params)
        for n, params in enumerate([*CUTS.values()] * 2)
    ]
    alone = tokens_by(1, logits, rows_of(cases))
    for threads in (2, 3):
        assert tokens_by(threads, logits, rows_of(cases)) == alone


def test_a_row_is_read_where_it_lies_and_left_as_it_is() -> None:
    wide = normal(1.0, 9000, 6)
    before = wide.clone()
    part = wide[1::2, :5000]
    sampled = rows_of([case([1, 2], [3], n, temperature=1.0, top_p=0.9, presence_penalty=1.0) for n in range(3)])
    found = Sampler().sample(part, sampled).token_ids
    assert found == Sampler().sample(part.contiguous(), sampled).token_ids
    assert torch.equal(wide, before)


@pytest.mark.parametrize("name", ["top_p", "min_p", "typical_p", "no k"])
def test_frequencies_on_flat_logits_follow_what_is_kept(name: str) -> None:
    """Chi-square over 64 groups of tokens of one row."""
    count, vocab = 4000, 4096
    logits = normal(0.5, vocab, 1)
    settings = rows(1, **CUTS[name])
    weights = _kept(logits, settings)
    found = np.bincount(
        np.array(Sampler().sample(logits.expand(count, -1), rows(count, **CUTS[name])).token_ids), minlength=vocab
    )
    assert not found[weights == 0].any()
    groups = np.arange(vocab) % 64
    expected = np.bincount(groups, weights / weights.sum() * count)
    observed = np.bincount(groups, found)
    assert ((observed - expected) ** 2 / expected).sum() < 64 + 6 * np.sqrt(2 * 64)


def _kept(logits: torch.Tensor, sampled: SamplingRows) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = (
        filtered_weights(logits, logits.max(dim=-1).values, sampled.settings)[0].double().numpy()
    )
    return weights

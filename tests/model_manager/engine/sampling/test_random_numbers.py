from __future__ import annotations

import numpy as np

from millrace.model_manager.engine.sampling.random_numbers import uniforms


def draw(seeds: list[int], index: list[int]) -> list[float]:
    numbers: list[float] = uniforms(np.array(seeds, np.uint64), np.array(index)).tolist()
    return numbers


def test_a_number_depends_on_seed_and_index_alone() -> None:
    assert draw([5, 9, 5], [3, 3, 4])[0] == draw([5], [3])[0]
    assert len(set(draw([5, 9, 5, 4], [3, 3, 4, 5]))) == 4


def test_numbers_stay_the_same_from_version_to_version() -> None:
    assert draw([0, 1, 2**63 - 1], [0, 1, 10_000]) == [0.6524484863740322, 0.9435642308648544, 0.8906674621395181]


def test_numbers_are_spread_evenly_along_indices_and_along_seeds() -> None:
    many = np.arange(20_000)
    along_index = uniforms(np.zeros(20_000, np.uint64), many)
    along_seeds = uniforms(many.astype(np.uint64), np.zeros(20_000, np.int64))
    for numbers in (along_index, along_seeds):
        assert 0.0 <= numbers.min() < numbers.max() < 1.0
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square, 19 degrees: p < 0.001
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(along_index, along_seeds)[0, 1]) < 0.03

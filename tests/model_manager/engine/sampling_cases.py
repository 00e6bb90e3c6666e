"""Rows for the sampler as the engine would make them, one for each request at its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.model_manager.engine.interface import Longs
from millrace.model_manager.engine.sampling.logit_rows import SETTINGS, SamplingRows, settings_of
from millrace.model_manager.engine.sampling.token_rules import token_rules
from millrace.model_manager.wire.sampling import SamplingParams


@dataclass(frozen=True)
class Case:
    """A request that has come to the end of its history."""

    params: SamplingParams
    seed: int
    prompt: list[int]
    output: list[int]


def case(prompt: Sequence[int] = (), output: Sequence[int] = (), seed: int = 1, **params: Any) -> Case:
    """With sampling parameters by name."""
    return Case(SamplingParams.parse(params), seed, list(prompt), list(output))


def rows_of(
    cases: Sequence[Case], *, eos: Sequence[int] = (), vocab_size: int = 10**6, tokenizer: Any = None
) -> SamplingRows:
    """One row for each."""
    lengths = np.array([len(each.prompt) + len(each.output) for each in cases])
    tokens = np.zeros((len(cases), int(lengths.max(initial=0)) + 1), np.int32)
    for row, each in enumerate(cases):
        tokens[row, : lengths[row]] = each.prompt + each.output
    settings = np.array([settings_of(each.params, each.seed, len(each.prompt)) for each in cases], SETTINGS)
    rules = [token_rules(each.params, eos, vocab_size, tokenizer) for each in cases]
    return SamplingRows.of(settings, tokens, np.arange(len(cases)), lengths, rules)


def indexed(each: Case, index: Longs) -> SamplingRows:
    """Rows of one case that differ in the index of their token only; for parameters that read no history."""
    row, count = rows_of([each]), len(index)
    settings, tokens = np.repeat(row.settings, count), np.zeros((1, 1), np.int32)
    return SamplingRows.of(settings, tokens, np.zeros(count, np.int64), index, [None] * count)

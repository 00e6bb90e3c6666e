"""Checks a model before it is served: our logits must equal the logits with transformers' own attention.

Sequences go through the engine's path, cut into steps and packed together, and each through transformers' path by
itself. Code that ignores positions, mixes the sequences of a batch, or attends otherwise than it says, differs there.
On a CPU the second sequence has positions from all over the model's length, so that a rope that is scaled for long
texts, or attention that weighs far positions otherwise, counts as much as it ever will; a GPU's kernels find their
masks by positions, which therefore follow each other there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..interface import Longs, ModelRunner, StepInput
from ..torch.attention_hook import attending_as, own_implementation
from .refusing import not_served

_LENGTHS = (24, 13)
_FIRST_CUT = 10
"""Tokens of the first sequence that the first step computes, with the whole second sequence."""
_DECODED = 5
"""Tokens of the first sequence that have a step each at the end, as in decoding."""


@dataclass(frozen=True)
class Tolerance:
    """How far a row's logits may be from transformers', as a part of their size."""

    most: float
    every_row: bool
    """False: only half of the rows, since rounding sends some tokens of a mixture of experts to other experts."""


EXACT = Tolerance(1e-3, every_row=True)
"""Tolerance of float32 on a CPU; a different computation is off by a few percent, up to 1, in most rows."""
_ROUGH = {torch.float32: 0.02, torch.bfloat16: 0.12, torch.float16: 0.04}
_ROUNDED_WEIGHTS, _ROUNDED_CACHE = 0.12, 0.3
"""Three times what rounding comes to in 48 layers of OLMo 2, which is more than in other architectures."""


def tolerance(model: Any, *, rounds_weights: bool, rounds_cache: bool) -> Tolerance:
    """The tolerance for a loaded model, which may round the inputs of linear layers, and keys and values."""
    if model.dtype == torch.float32 and model.device.type == "cpu" and not (rounds_weights or rounds_cache):
        return EXACT
    rounded = max(_ROUNDED_WEIGHTS * rounds_weights, _ROUNDED_CACHE * rounds_cache)
    return Tolerance(max(_ROUGH[model.dtype], rounded), every_row=False)


def check_against_own_attention(
    model: Any,
    runner: ModelRunner,
    within: Tolerance,
    *,
    max_tokens: int,
    max_seqs: int,
    as_written: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Raise ModelUnsupported unless packed, paged logits equal what `model` alone gives with transformers' attention.

    A step of the runner takes `max_tokens` of `max_seqs` sequences at most. Within `as_written` the model computes what
    its own code says, if anything else stands in its layers' places. Writes to the first blocks of the KV cache,
    whose content nobody has a use for yet.
    """
    try:
        lengths = _lengths(runner, max_tokens, max_seqs)
        sequences = _sequences(lengths, runner, spread=model.device.type == "cpu")
        with torch.inference_mode(), attending_as(model, own_implementation(model)), as_written():
            wanted = [_own_logits(model, sequence) for sequence in sequences]
        error = _difference(runner, sequences, wanted, min(_FIRST_CUT, max_tokens), within)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError) as failure:
        raise not_served(model, f"a first batch through it ended in {type(failure).__name__}: {failure}") from failure
    if not error < within.most:
        raise not_served(
            model,
            "in a batch it answers otherwise than alone with transformers' own attention (its logits differ by "
            f"{error:.1%})",
        )


@dataclass(frozen=True)
class _Sequence:
    """Tokens at consecutive places of a cache, and the positions that the model is told."""

    tokens: Longs
    positions: Longs


@torch.inference_mode()
def _difference(
    runner: ModelRunner, sequences: list[_Sequence], wanted: list[torch.Tensor], first_cut: int, within: Tolerance
) -> float:
    """How far our logits are from those wanted: the worst step's worst row, or its median row; decoding steps count as
    one.
    """
    lengths = [len(sequence.tokens) for sequence in sequences]
    summary: Callable[[torch.Tensor], torch.Tensor] = torch.max if within.every_row else torch.median
    errors, decoded = [], []
    for spans in _cuts(lengths, first_cut):
        step = _step(sequences, spans, runner.block_size)
        rows = runner.execute(step).logits.split([end - start for start, end in spans])
        for got, alone, (start, end) in zip(rows, wanted, spans, strict=False):
            own = alone[start:end]
            error = (got - own).norm(dim=-1) / own.norm(dim=-1)
            if len(step.token_ids) == 1:
                decoded.append(error)  # one row says little where only half of them are to agree
            else:
                errors.append(summary(error))
    if decoded:
        errors.append(summary(torch.cat(decoded)))
    return float(torch.stack(errors).max())


def _lengths(runner: ModelRunner, max_tokens: int, max_seqs: int) -> list[int]:
    """Tokens of each sequence: as many as the model's length, its cache and a step have room for."""
    most = min(runner.max_model_len, runner.num_blocks * runner.block_size)
    first = min(_LENGTHS[0], most, min(_FIRST_CUT, max_tokens) + max_tokens)
    second = min(_LENGTHS[1], first, max_tokens - min(_FIRST_CUT, first))
    fits = max_seqs > 1 and 2 * -(-first // runner.block_size) <= runner.num_blocks
    return [first, second] if fits and second > 0 else [first]


def _sequences(lengths: list[int], runner: ModelRunner, *, spread: bool) -> list[_Sequence]:
    generator = np.random.default_rng(0)
    sequences = []
    for index, length in enumerate(lengths):
        positions = np.arange(length, dtype=np.int64)
        if spread and index:
            positions = np.sort(generator.choice(runner.max_model_len, length, replace=False))
        sequences.append(_Sequence(generator.integers(0, runner.vocab_size, length), positions))
    return sequences


def _cuts(lengths: list[int], most: int) -> Iterator[list[tuple[int, int]]]:
    """The places that each step computes of each sequence: the first step `most` of the first one, the last ones a
    token of it each.
    """
    first, *others = lengths
    cut = min(first, most)
    yield [(0, cut), *((0, length) for length in others)]
    decoding = max(cut, first - _DECODED)
    if cut < decoding:
        yield [(cut, decoding)]
    yield from ([(place, place + 1)] for place in range(decoding, first))


def _step(sequences: list[_Sequence], spans: list[tuple[int, int]], block_size: int) -> StepInput:
    """The step that computes these places, on consecutive blocks."""
    per_sequence = -(-len(sequences[0].tokens) // block_size)
    tables = np.arange(len(sequences) * per_sequence, dtype=np.int32).reshape(len(sequences), per_sequence)
    places = [np.arange(start, end, dtype=np.int64) for start, end in spans]
    ends = np.cumsum([len(each) for each in places])
    slots = [tables[row, each // block_size] * block_size + each % block_size for row, each in enumerate(places)]
    return StepInput(
        token_ids=np.concatenate([sequences[row].tokens[each] for row, each in enumerate(places)]),
        positions=np.concatenate([sequences[row].positions[each] for row, each in enumerate(places)]),
        slots=np.concatenate(slots).astype(np.int64),
        query_starts=np.array([0, *ends], np.int32),
        context_lens=np.array([end for _, end in spans], np.int32),
        block_tables=tables[: len(spans)],
        logits_rows=np.arange(ends[-1]),
    )


def _own_logits(model: Any, sequence: _Sequence) -> torch.Tensor:
    """[length, vocab_size]: logits of one sequence alone, without a cache; the mask says that it is one text."""
    ids = torch.from_numpy(sequence.tokens).unsqueeze(0).to(model.device)
    positions = torch.from_numpy(sequence.positions).unsqueeze(0).to(model.device)
    output = model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False)
    logits: torch.Tensor = output.logits[0]
    return logits.float()

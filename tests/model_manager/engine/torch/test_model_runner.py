"""The runner's logits against transformers' own forward pass, however a sequence is cut into steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from millrace.model_manager.engine.interface import ModelRunner
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.wire.config import ModelConfig
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.batches import deal_blocks, make_step

_BLOCK = 16


def _config(**settings: Any) -> ModelConfig:
    defaults: dict[str, Any] = {"model": "small", "kv_cache_gib": 0.05, "num_threads": 2, "block_size": _BLOCK}
    return ModelConfig(**defaults | settings)


def _tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, random_checkpoints.VOCAB, (length,), generator=generator).tolist()


@torch.inference_mode()
def _dense(model: Any, tokens: list[int]) -> torch.Tensor:
    """[length, vocabulary] from one pass over the whole sequence."""
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0].float()
    return logits


@pytest.mark.parametrize("make", random_checkpoints.ALL)
def test_logits_are_those_of_a_dense_pass_however_the_sequences_are_cut(
    tmp_path: Path, make: Callable[[], PreTrainedConfig]
) -> None:
    model = random_checkpoints.write(tmp_path, make())
    runner = load_model(_config(), tmp_path).runner
    for got, tokens, end in _cut(runner):
        torch.testing.assert_close(got, _dense(model, tokens)[end - 1], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("make", random_checkpoints.ALL)
def test_in_bfloat16_logits_are_as_near_to_float32_as_those_of_a_dense_pass(
    tmp_path: Path, make: Callable[[], PreTrainedConfig]
) -> None:
    exact = random_checkpoints.write(tmp_path / "exact", make())
    rounded = random_checkpoints.write(tmp_path / "rounded", make(), dtype=torch.bfloat16)
    ours = theirs = 0.0
    for got, tokens, end in _cut(load_model(_config(dtype="bfloat16"), tmp_path / "rounded").runner):
        wanted = _dense(exact, tokens)[end - 1]
        ours += float((got - wanted).square().sum())
        theirs += float((_dense(rounded, tokens)[end - 1] - wanted).square().sum())
    assert ours < 1.5 * theirs


def _cut(runner: ModelRunner) -> Iterator[tuple[torch.Tensor, list[int], int]]:
    """Three sequences over two steps: a row of logits, its sequence's tokens, how many of them it has seen."""
    tokens = [_tokens(length, length) for length in (1, 40, 77)]
    tables = deal_blocks([len(ids) for ids in tokens], _BLOCK, runner.num_blocks)
    for rows, spans in (([1, 2], [(0, 39), (0, 20)]), ([0, 1, 2], [(0, 1), (39, 40), (20, 77)])):
        logits = runner.execute(make_step(spans, tables[rows], _BLOCK, [tokens[row] for row in rows])).logits
        assert logits.dtype == torch.float32
        assert logits.shape == (len(rows), runner.vocab_size)
        yield from ((got, tokens[row], end) for got, row, (_, end) in zip(logits, rows, spans, strict=True))


def test_logits_come_for_the_rows_asked_for_and_no_others(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.qwen2())
    runner = load_model(_config(), tmp_path).runner
    tables = deal_blocks([5, 7], _BLOCK, runner.num_blocks)
    step = make_step([(0, 5), (0, 7)], tables, _BLOCK, [_tokens(5, 1), _tokens(7, 2)])
    both = runner.execute(step).logits
    one = runner.execute(type(step)(**vars(step) | {"logits_rows": step.logits_rows[1:]})).logits
    none = runner.execute(type(step)(**vars(step) | {"logits_rows": step.logits_rows[:0]})).logits
    torch.testing.assert_close(one[0], both[1])
    assert none.shape == (0, runner.vocab_size)


def test_the_same_batch_gives_the_same_bits_again(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.llama_gqa())
    runner = load_model(_config(), tmp_path).runner
    tables = deal_blocks([50, 7], _BLOCK, runner.num_blocks)
    step = make_step([(0, 50), (0, 7)], tables, _BLOCK, [_tokens(50, 1), _tokens(7, 2)])
    assert torch.equal(runner.execute(step).logits, runner.execute(step).logits)


def test_every_position_of_the_model_can_be_used(tmp_path: Path) -> None:
    model = random_checkpoints.write(tmp_path, random_checkpoints.opt())
    runner = load_model(_config(), tmp_path).runner
    tokens = _tokens(random_checkpoints.POSITIONS, 3)
    tables = deal_blocks([len(tokens)], _BLOCK, runner.num_blocks)
    logits = runner.execute(make_step([(0, len(tokens))], tables, _BLOCK, [tokens])).logits
    torch.testing.assert_close(logits[0], _dense(model, tokens)[-1], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("make", random_checkpoints.ALL)
@torch.inference_mode()
def test_hidden_states_are_those_of_the_decoder_and_lead_to_its_logits(
    tmp_path: Path, make: Callable[[], PreTrainedConfig]
) -> None:
    model = random_checkpoints.write(tmp_path, make())
    runner = load_model(_config(), tmp_path).runner
    tokens = [_tokens(5, 1), _tokens(40, 2)]
    tables = deal_blocks([5, 40], _BLOCK, runner.num_blocks)
    step = make_step([(0, 5), (0, 40)], tables, _BLOCK, tokens)
    output = runner.execute(replace(step, logits_rows=np.array([44]), hidden_rows=np.array([2, 5, 30, 44])))
    dense = [model.model(torch.tensor([ids])).last_hidden_state[0] for ids in tokens]
    wanted = torch.stack([dense[0][2], dense[1][0], dense[1][25], dense[1][39]])
    torch.testing.assert_close(output.hidden, wanted, atol=2e-3, rtol=2e-3)
    logits = runner.logits(output.hidden)
    torch.testing.assert_close(logits[-1], output.logits[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[1:3], _dense(model, tokens[1])[[0, 25]], atol=2e-3, rtol=2e-3)
    assert runner.execute(step).hidden is None

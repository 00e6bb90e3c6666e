"""The compiled step against transformers' code: logits, hidden states, some rows of a step and more than it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millrace.model_manager.engine.cpu.compiled_runner import CompiledRunner
from millrace.model_manager.engine.cpu.matrix_ops import LANES, Format
from millrace.model_manager.engine.cpu.units import unit_of
from millrace.model_manager.engine.loading import compiled_loader
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.torch.model_runner import TorchModelRunner
from millrace.model_manager.wire.config import ModelConfig
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.batches import deal_blocks, make_step

pytestmark = pytest.mark.skipif(unit_of(Format.FLOAT32, LANES) is None, reason="the processor lacks AVX2")

_MAX_TOKENS = 64
_LAST_ROWS = (4, 5, 38, 58)
"""Last rows of the sequences in `_step`."""
_ASKED: tuple[tuple[list[int], list[int]], ...] = (
    ([4, 58], []), ([], [7]), ([5, 38], [0, 1, 2, 38, 40]), ([58, 3, 3], [58, 0])
)  # fmt: skip
"""Rows of logits and of hidden states."""
_FLOAT32, _BFLOAT16, _INT8 = ({"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantization": "int8"})
_LLAMA, _QWEN2, _OPT = random_checkpoints.llama_gqa, random_checkpoints.qwen2, random_checkpoints.opt
_GEMMA, _STARCODER2 = tested_models.gemma, tested_models.starcoder2
_CASES = [
    *((_LLAMA, each) for each in (_FLOAT32, _BFLOAT16, _INT8)),
    *((_QWEN2, _FLOAT32), (_OPT, _BFLOAT16), (_GEMMA, _INT8), (_STARCODER2, _FLOAT32)),
]
"""Each model, each format: a format's kernels do not know the model, nor do a model's parts know the format."""


def _runner(folder: Path, **settings: Any) -> Any:
    fields = {"kv_cache_gib": 0.01, "num_threads": 2, "max_num_seqs": 8, "max_num_batched_tokens": _MAX_TOKENS}
    return load_model(ModelConfig(model="small", **fields | settings), folder).runner


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    @cache
    def made(make: Any) -> Path:
        folder = tmp_path_factory.mktemp("model")
        random_checkpoints.write(folder, make())
        return folder

    return made


@pytest.fixture(scope="module", params=_CASES)
def runner(request: pytest.FixtureRequest, folder_of: Callable[[Any], Path]) -> Any:
    make, settings = request.param
    return _runner(folder_of(make), **settings)


def _step(logits_rows: Sequence[int] = _LAST_ROWS, hidden_rows: Sequence[int] = _LAST_ROWS) -> Any:
    step = make_step([(0, 5), (0, 1), (0, 33), (0, 20)], deal_blocks([5, 1, 33, 20], 16, 16), 16)
    tokens = torch.randint(2, random_checkpoints.VOCAB, (59,), generator=torch.Generator().manual_seed(1))
    object.__setattr__(step, "token_ids", tokens.numpy())
    object.__setattr__(step, "logits_rows", np.array(logits_rows, np.int64))
    object.__setattr__(step, "hidden_rows", np.array(hidden_rows, np.int64))
    return step


@pytest.mark.parametrize(
    ("make", "dtype", "tolerance"),
    [
        *((make, "float32", 1e-4) for make in (_LLAMA, _QWEN2, _GEMMA, _STARCODER2)),
        *((make, "bfloat16", 0.15) for make in (_LLAMA, _OPT)),
    ],
)
def test_logits_and_hidden_states_are_those_of_transformers_code(
    folder_of: Callable[[Any], Path], make: Any, dtype: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(make)
    compiled = _runner(folder, dtype=dtype)
    monkeypatch.setattr(compiled_loader, "plan_decoder", lambda _architecture, _config: None)
    plain = _runner(folder, dtype=dtype)
    assert (type(compiled), type(plain)) == (CompiledRunner, TorchModelRunner)
    got, wanted = compiled.execute(_step()), plain.execute(_step())
    for name in ("logits", "hidden"):
        one, other = getattr(got, name).float(), getattr(wanted, name).float()
        assert (one - other).abs().max() < tolerance * other.abs().max(), name


def test_rows_are_the_same_whichever_others_are_asked_for(runner: Any) -> None:
    everything = runner.execute(_step(range(59), range(59)))
    for logits_rows, hidden_rows in _ASKED:
        some = runner.execute(_step(logits_rows, hidden_rows))
        assert torch.equal(some.logits, everything.logits[logits_rows])
        assert torch.equal(some.hidden, everything.hidden[hidden_rows]) if hidden_rows else some.hidden is None


def test_a_step_that_asks_for_nothing_keeps_its_keys_and_values(runner: Any) -> None:
    """The same prompt at once, and in two steps, where the first one samples nothing."""
    tokens, table = [range(2, 26)], np.array([[3, 1]], np.int32)
    whole = runner.execute(make_step([(0, 24)], table, 16, tokens)).logits
    first = make_step([(0, 20)], table, 16, tokens)
    object.__setattr__(first, "logits_rows", np.zeros(0, np.int64))
    assert runner.execute(first).logits.shape == (0, runner.vocab_size)
    rest = runner.execute(make_step([(20, 24)], table, 16, tokens)).logits
    torch.testing.assert_close(rest, whole, rtol=1e-2, atol=1e-2)


def test_the_head_alone_takes_more_rows_than_a_step_and_gives_the_same(runner: Any) -> None:
    output = runner.execute(_step())
    many = output.hidden.repeat(_MAX_TOKENS, 1)
    again = runner.logits(many)
    assert len(again) > _MAX_TOKENS
    torch.testing.assert_close(again, output.logits.repeat(_MAX_TOKENS, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [_LLAMA, _GEMMA])
def test_int8_is_near_the_model_that_it_rounds(folder_of: Callable[[Any], Path], make: Any) -> None:
    folder = folder_of(make)
    exact, rounded = (_runner(folder, quantization=name).execute(_step()).hidden for name in ("none", "int8"))
    difference = (exact - rounded).norm() / exact.norm()
    assert 0 < difference < 0.25

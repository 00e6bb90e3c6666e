"""Parameters from files: the names they go by, and that a model so loaded is the one that transformers loads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from millrace.model_manager.engine.cpu.compiled_runner import CompiledRunner
from millrace.model_manager.engine.cpu.decoder_plan import plan_decoder
from millrace.model_manager.engine.cpu.matrix_ops import LANES, Format
from millrace.model_manager.engine.cpu.parameter_reader import LoadedParameters, stored_parameters
from millrace.model_manager.engine.cpu.units import unit_of
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.wire.config import ModelConfig
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.batches import deal_blocks, make_step

_A, _B = Path("a"), Path("b")
_WANTED = {"model.embed": (4, 2), "lm_head": (4, 2)}
_FOUND = {"model.embed": (_A, (4, 2)), "lm_head": (_B, (4, 2))}

needs_kernels = pytest.mark.skipif(unit_of(Format.FLOAT32, LANES) is None, reason="the processor lacks AVX2")


@pytest.mark.parametrize(
    "found",
    [
        {"model.embed": (_A, (4, 2))},
        _FOUND | {"adapter": (_A, (1,))},
        _FOUND | {"lm_head": (_B, (4, 3))},
        {"model.embed": (_A, (4, 2)), "head": (_A, (4, 2))},
        _FOUND | {"embed": (_A, (4, 2))},
    ],
)
def test_files_that_hold_anything_else_are_left_to_who_knows_more_names(found: dict[str, Any]) -> None:
    assert stored_parameters(_WANTED, _FOUND) is not None
    assert stored_parameters(_WANTED, found) is None


def test_parameters_come_from_their_files_whatever_the_prefix_of_their_names(tmp_path: Path) -> None:
    one, other = torch.randn(4, 2), torch.randn(4, 2)
    files = [tmp_path / "a", tmp_path / "b"]
    save_file({"embed": one, "layers.0.rotary_emb.inv_freq": torch.ones(3)}, files[0])
    save_file({"lm_head": other}, files[1])
    found = {
        "embed": (files[0], (4, 2)),
        "layers.0.rotary_emb.inv_freq": (files[0], (3,)),
        "lm_head": (files[1], (4, 2)),
    }
    stored = stored_parameters(_WANTED, found)
    assert stored is not None
    taken = stored.take(_WANTED)
    assert torch.equal(taken["model.embed"], one)
    assert torch.equal(taken["lm_head"], other)


def test_loaded_parameters_are_given_up_as_they_are_taken() -> None:
    state = {"a": torch.ones(1), "b": torch.zeros(1)}
    assert LoadedParameters(state).take(["a"])["a"] == 1
    assert [*state] == ["b"]


_COMPILED: list[Callable[[], PreTrainedConfig]] = [
    random_checkpoints.opt,
    random_checkpoints.llama_gqa,
    random_checkpoints.llama_one_kv_head,
    tested_models.llama_dynamic_rope,
    tested_models.mistral,
    random_checkpoints.qwen2,
    random_checkpoints.qwen2_sliding_window,
    tested_models.qwen3,
    tested_models.gemma,
    tested_models.starcoder2,
]


@pytest.mark.parametrize("make", _COMPILED)
def test_a_plan_names_the_parameters_that_transformers_saves(
    make: Callable[[], PreTrainedConfig], tmp_path: Path
) -> None:
    config = make()
    model = random_checkpoints.write(tmp_path, config)
    plan = plan_decoder(type(model).__name__, config)
    assert plan is not None
    saved = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert plan.shapes == saved


@needs_kernels
@pytest.mark.parametrize("make", _COMPILED)
def test_a_model_loaded_from_its_files_is_the_one_that_transformers_loads(
    make: Callable[[], PreTrainedConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the names of its parameters have a prefix or not."""
    model = random_checkpoints.write(tmp_path, make())
    wanted = _logits(load_model(_config(), tmp_path).runner)
    monkeypatch.setattr(type(model), "from_pretrained", _fail)
    assert torch.equal(_logits(load_model(_config(), tmp_path).runner), wanted)
    weights = load_file(tmp_path / "model.safetensors")
    without = {name.removeprefix("model."): weight for name, weight in weights.items()}
    save_file(without, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.equal(_logits(load_model(_config(), tmp_path).runner), wanted)


@needs_kernels
def test_what_only_transformers_makes_sense_of_is_compiled_too(tmp_path: Path) -> None:
    """A checkpoint whose head is stored although it is tied to the embedding."""
    model = random_checkpoints.write(tmp_path, random_checkpoints.opt())
    wanted = _logits(load_model(_config(), tmp_path).runner)
    weights = load_file(tmp_path / "model.safetensors")
    tied = weights["model.decoder.embed_tokens.weight"].clone()
    save_file(weights | {"lm_head.weight": tied}, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = load_model(_config(), tmp_path).runner
    assert isinstance(loaded, CompiledRunner)
    assert torch.equal(_logits(loaded), wanted)
    assert isinstance(model, transformers.OPTForCausalLM)


@needs_kernels
def test_a_head_that_differs_from_the_embedding_it_should_be_tied_to_is_what_transformers_takes(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.opt())
    weights = load_file(tmp_path / "model.safetensors")
    other = torch.randn_like(weights["model.decoder.embed_tokens.weight"])
    save_file(weights | {"lm_head.weight": other}, tmp_path / "model.safetensors", {"format": "pt"})
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    model.eval()
    with torch.inference_mode():
        wanted = model(_step_tokens()[None]).logits[0, -1]
    torch.testing.assert_close(_logits(load_model(_config(), tmp_path).runner)[0], wanted, rtol=1e-4, atol=1e-4)


@needs_kernels
def test_a_start_of_a_model_that_was_checked_imports_nothing_of_transformers(tmp_path: Path) -> None:
    """Its model code would take longer than all the rest. The first start, here, compares the plan with that code."""
    random_checkpoints.write(tmp_path, random_checkpoints.qwen2())
    slow = {
        "transformers",
        "transformers.models.qwen2.modeling_qwen2",
        "transformers.activations",
        "torch._dynamo",
        "sympy",
    }
    load_model(ModelConfig(model="small", kv_cache_gib=0.01), tmp_path)
    assert slow <= sys.modules.keys()
    program = (
        "import sys; from pathlib import Path; from millrace.model_manager.wire.config import ModelConfig\n"
        "from millrace.model_manager.engine import engine\n"
        "from millrace.model_manager.engine.loading.model_loader import load_model\n"
        "load_model(ModelConfig(model='small', kv_cache_gib=0.01), Path(sys.argv[1]))\n"
        f"print({slow} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    later = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert later.strip() == "set()"


def _config() -> ModelConfig:
    return ModelConfig(model="small", kv_cache_gib=0.01, num_threads=1, max_num_seqs=8, max_num_batched_tokens=64)


def _fail(*_: Any, **__: Any) -> None:
    raise AssertionError("transformers' model code was asked")


def _step_tokens() -> torch.Tensor:
    return torch.randint(2, random_checkpoints.VOCAB, (30,), generator=torch.Generator().manual_seed(1))


def _logits(runner: Any) -> torch.Tensor:
    step = make_step([(0, 30)], deal_blocks([30], 16, 16), 16)
    object.__setattr__(step, "token_ids", _step_tokens().numpy())
    logits: torch.Tensor = runner.execute(step).logits
    return logits

"""Loading: what is loaded, what it says of itself, and one sentence for whatever is wrong with a folder."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from millrace.model_manager.engine.cpu.attention import CpuAttention
from millrace.model_manager.engine.cpu.parameter_reader import StoredParameters
from millrace.model_manager.engine.interface import StepInput
from millrace.model_manager.engine.loading import device
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.torch.gathering_attention import GatheringAttention
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import (
    ConfigError,
    ModelCorrupt,
    ModelDoesNotFit,
    ModelNotFound,
    ModelUnsupported,
)
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.random_checkpoints import POSITIONS, VOCAB


def _config(**settings: Any) -> ModelConfig:
    defaults: dict[str, Any] = {"model": "small", "kv_cache_gib": 0.01, "num_threads": 1}
    return ModelConfig(**defaults | settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_checkpoints.write(tmp_path, random_checkpoints.qwen2())
    return tmp_path


def _edit(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_loaded_model_says_what_it_is(folder: Path) -> None:
    info = load_model(_config(max_num_seqs=7, block_size=32), folder).info
    assert (info.name, info.folder, info.architecture) == ("small", str(folder), "Qwen2ForCausalLM")
    assert (info.dtype, info.device, info.vocab_size) == ("float32", "cpu", VOCAB)
    assert (info.max_model_len, info.max_num_seqs, info.block_size) == (POSITIONS, 7, 32)
    assert info.num_blocks == 7 * POSITIONS // 32
    assert info.load_seconds > 0


def test_the_runner_agrees_with_its_description(folder: Path) -> None:
    loaded = load_model(_config(), folder)
    runner, info = loaded.runner, loaded.info
    assert (runner.vocab_size, runner.max_model_len, runner.eos_token_ids) == (VOCAB, POSITIONS, info.eos_token_ids)
    assert (runner.num_blocks, runner.block_size) == (info.num_blocks, info.block_size)


def test_the_setting_shortens_the_models_length_and_never_lengthens_it(folder: Path) -> None:
    assert load_model(_config(max_model_len=100), folder).info.max_model_len == 100
    with pytest.raises(ConfigError, match=f"max_model_len={POSITIONS + 1}: this model takes at most {POSITIONS}"):
        load_model(_config(max_model_len=POSITIONS + 1), folder)


@pytest.mark.parametrize(
    ("config", "generation", "wanted"),
    [
        (5, None, [5]),
        ([5, 6], None, [5, 6]),
        (None, None, []),
        (5, [7, 8], [7, 8]),
        (5, 9, [9]),
        (5, 0, [0]),
        (5, "no file", [5]),
    ],
)
def test_end_of_sequence_tokens_come_from_the_generation_config_first(
    folder: Path, config: Any, generation: Any, wanted: list[int]
) -> None:
    _edit(folder / "config.json", eos_token_id=config)
    if generation == "no file":
        (folder / "generation_config.json").unlink()
    else:
        _edit(folder / "generation_config.json", eos_token_id=generation)
    assert load_model(_config(), folder).info.eos_token_ids == wanted


def test_shards_are_put_together(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.llama_gqa(), shard="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert load_model(_config(), tmp_path).info.architecture == "LlamaForCausalLM"


def test_a_config_without_an_architecture_is_loaded_by_its_type(folder: Path) -> None:
    _edit(folder / "config.json", architectures=None)
    assert load_model(_config(), folder).info.architecture == "Qwen2ForCausalLM"


def test_masks_that_released_pythias_have_beside_their_weights_are_not_read(tmp_path: Path) -> None:
    random_checkpoints.write(tmp_path, tested_models.gpt_neox())
    plain = load_model(_config(), tmp_path).runner.execute(StepInput.of_first_tokens(9)).logits
    weights = load_file(tmp_path / "model.safetensors")
    for layer, mask in enumerate((torch.bool, torch.uint8, torch.float32)):
        name = f"gpt_neox.layers.{layer}.attention"
        weights[f"{name}.bias"] = torch.ones(1, 1, POSITIONS, POSITIONS).tril().to(mask)
        weights[f"{name}.masked_bias"] = torch.tensor(-1e9)
        weights[f"{name}.rotary_emb.inv_freq"] = torch.ones(3)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    masked = load_model(_config(), tmp_path).runner.execute(StepInput.of_first_tokens(9)).logits
    assert torch.equal(plain, masked)


# ── formats ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("fast", "wanted"), [(True, "bfloat16"), (False, "float32")])
def test_half_precision_is_computed_in_what_the_processor_is_fast_in(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stored: torch.dtype,
    fast: bool,
    wanted: str,
) -> None:
    monkeypatch.setattr(device, "computes_bfloat16_fast", lambda: fast)
    random_checkpoints.write(tmp_path, random_checkpoints.opt(), dtype=stored)
    assert load_model(_config(), tmp_path).info.dtype == wanted
    assert (f"instead of the checkpoint's {stored}" in caplog.text) == (str(stored) != f"torch.{wanted}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_format_that_is_asked_for_is_taken(folder: Path, dtype: str) -> None:
    assert load_model(_config(dtype=dtype), folder).info.dtype == dtype


def test_float16_is_refused_on_a_cpu(folder: Path) -> None:
    with pytest.raises(ConfigError, match="dtype='float16'"):
        load_model(_config(dtype="float16", device="cpu"), folder)


def test_cuda_is_refused_where_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device='cuda': this machine has no usable CUDA device"):
        load_model(_config(device="cuda"), folder)


# ── attention ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_heads_that_no_kernel_takes_are_attended_by_gathering_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = random_checkpoints.llama_gqa()
    config.head_dim = 12
    random_checkpoints.write(tmp_path, config)
    runner: Any = load_model(_config(), tmp_path).runner
    assert isinstance(runner._attention, GatheringAttention)
    assert "no CPU kernel for heads of 12" in caplog.text


def test_loading_a_usual_model_logs_no_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner: Any = load_model(_config(), folder).runner
    assert isinstance(runner._attention, CpuAttention)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_nothing_is_printed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(_config(), folder)
    assert capfd.readouterr() == ("", "")


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cache_is_reserved_and_not_touched(folder: Path) -> None:
    process = psutil.Process()
    load_model(_config(kv_cache_gib=0.01), folder)  # whatever is loaded once
    before = process.memory_info().rss
    loaded = load_model(_config(kv_cache_gib=1.0, max_num_seqs=4096, max_num_batched_tokens=4096), folder)
    cache_bytes = loaded.info.num_blocks * loaded.info.block_size * 2 * 3 * 2 * 16 * 4
    assert cache_bytes > 700 * 2**20
    assert process.memory_info().rss - before < cache_bytes / 4


def test_weights_beyond_the_memory_are_refused_before_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.model_manager.engine.loading.placement.free_memory", lambda: 1000)
    with pytest.raises(ModelDoesNotFit, match="the weights take"):
        load_model(_config(), folder)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
@pytest.mark.parametrize("max_loras", [0, 1])
def test_memory_that_runs_out_while_weights_are_loaded_is_not_the_checkpoints_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, max_loras: int
) -> None:
    """It holds for a compiled model, and for one that is not compiled."""

    def run_out(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(transformers.Qwen2ForCausalLM, "from_pretrained", run_out)
    monkeypatch.setattr(StoredParameters, "take", run_out)
    with pytest.raises(ModelDoesNotFit, match="memory ran out"):
        load_model(_config(max_loras=max_loras), folder)


def test_a_cache_too_small_for_one_sequence_is_refused(folder: Path) -> None:
    with pytest.raises(ModelDoesNotFit, match="kv_cache_gib"):
        load_model(_config(kv_cache_gib=1e-5), folder)


# ── what is wrong with a folder ──────────────────────────────────────────────────────────────────────────────────────


def _weights(folder: Path, changes: dict[str, torch.Tensor], without: str = "") -> None:
    weights = load_file(folder / "model.safetensors") | changes
    save_file(
        {name: weights[name] for name in weights if name != without}, folder / "model.safetensors", {"format": "pt"}
    )


def _remote_code(folder: Path) -> None:
    (folder / "modeling.py").write_text("raise SystemExit('it ran')\n")
    auto_map = {"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"}
    _edit(folder / "config.json", model_type="own", architectures=["Model"], auto_map=auto_map)


def _text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def _other(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: _edit(folder / "config.json", **changes)


_UP, _NORM = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
_DAMAGES: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), ModelNotFound, "holds no config.json"),
    "config cut short": (_text("config.json", '{"model_type": "qw'), ModelCorrupt, "config.json is not readable"),
    "config of nothing": (_text("config.json", "[]"), ModelCorrupt, "config.json is not readable"),
    "config with odd sizes": (_other(hidden_size="many"), ModelCorrupt, "hidden_size"),
    "generation config cut short": (
        _text("generation_config.json", "{"), ModelCorrupt, "generation_config.json is not readable"),
    "generation config with an odd token": (
        _text("generation_config.json", '{"eos_token_id": ["two"]}'),
        ModelCorrupt, "generation_config.json: eos_token_id: takes an integer or a list of integers, got"),
    "unknown model type": (
        _other(model_type="perpetuum", architectures=["PerpetuumForCausalLM"]),
        ModelUnsupported, "knows no such model type"),
    "other architecture": (
        _other(architectures=["Qwen2ForSequenceClassification"]),
        ModelUnsupported, "Qwen2ForSequenceClassification is not served: transformers"),
    "remote code": (_remote_code, ModelUnsupported, "no code of a model's own is run"),
    "quantized": (
        _other(quantization_config={"quant_method": "hqq", "bits": 4}),
        ModelUnsupported, "weights quantized by hqq are not read; takes gptq, awq,"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(), ModelUnsupported, "no weights in safetensors format"),
    "weights cut short": (
        lambda folder: os.truncate(folder / "model.safetensors", 20_000),
        ModelCorrupt, "model.safetensors is damaged"),
    "weights of noise": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 1000),
        ModelCorrupt, "model.safetensors is damaged"),
    "weight missing": (
        lambda folder: _weights(folder, {}, without=_UP), ModelCorrupt, f"missing weights (1): {_UP}"),
    "weight too many": (
        lambda folder: _weights(folder, {"model.layers.0.adapter.weight": torch.zeros(3)}),
        ModelCorrupt, "unexpected weights (1): model.layers.0.adapter.weight"),
    "weight misshapen": (lambda folder: _weights(folder, {_NORM: torch.zeros(3)}), ModelCorrupt, _NORM),
    "weight of integers": (
        lambda folder: _weights(folder, {_NORM: torch.zeros(64, dtype=torch.int8)}),
        ModelUnsupported, f"{_NORM} is stored as I8"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "error", "words"), _DAMAGES.values(), ids=_DAMAGES)
def test_what_is_wrong_with_a_folder_is_said_in_one_sentence(
    folder: Path, damage: Callable[[Path], object], error: type[Exception], words: str
) -> None:
    damage(folder)
    with pytest.raises(error) as raised:
        load_model(_config(), folder)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)

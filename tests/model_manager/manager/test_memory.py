"""What a model will take, by its files and settings, and whether there is as much."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.model_manager.manager.memory import GIB, MARGIN, PROCESS, Footprint, Memory, estimate
from millrace.model_manager.wire.config import ModelConfig
from tests.model_manager.store.checkpoints import write_checkpoint

VALUES = 1_000_000


def of(name: str, used: float = 0.0, **fields: float) -> Footprint:
    return Footprint(name, ModelConfig(model=name), "/", used=used, on_gpu="gpu_free" in fields, **fields)  # type: ignore[arg-type]


def needs(config: ModelConfig, _folder: str) -> float:
    """GiB, as many as the name says."""
    return float(config.model)


def memory(limit: float | None, free: float = 0.0) -> Memory:
    return Memory(limit, lambda: int(free * GIB), needs)


def test_within_a_limit_the_models_that_run_count_with_what_they_have_or_will_have() -> None:
    assert memory(5).allows(of("2"), [of("3")])
    assert not memory(5).allows(of("2.1"), [of("3")])
    assert not memory(5).allows(of("2"), [of("3", used=3.5)])


def test_without_a_limit_what_is_free_counts_less_what_the_others_have_yet_to_take() -> None:
    assert memory(None, free=4).allows(of("2"), [of("3", used=1.0)])
    assert not memory(None, free=4).allows(of("2.1"), [of("3", used=1.0)])
    assert memory(None, free=4).allows(of("4"), [of("3", used=9.0)])


def test_on_a_gpu_what_its_engine_has_left_counts() -> None:
    new = Footprint("n", ModelConfig(model="2"), "/", on_gpu=True)
    assert memory(None).allows(new, [of("3", gpu_free=2.5)])
    assert not memory(None).allows(new, [of("3", gpu_free=1.5), of("3", gpu_free=9.0)])


@pytest.mark.parametrize(
    ("settings", "width"),
    [({}, 4), ({"dtype": "bfloat16"}, 2), ({"quantization": "int8", "dtype": "bfloat16"}, 2)],
)
def test_weights_are_counted_as_they_will_be_held(tmp_path: Path, settings: dict[str, str], width: int) -> None:
    folder = write_checkpoint(tmp_path / "m", values=VALUES)  # a vector, which is not rounded
    config = ModelConfig.parse({"model": "m", "kv_cache_gib": 0.5} | settings)
    took = estimate(config, str(folder)) - PROCESS - 0.5
    assert took == pytest.approx(MARGIN * VALUES * width / GIB, rel=0.01)


def test_the_cache_is_for_useful_lengths_of_all_sequences_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    fields = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"torch_dtype": "bfloat16"}))
    assert estimate(ModelConfig(max_num_seqs=64), str(tmp_path)) == pytest.approx(PROCESS + 2.0)
    assert estimate(ModelConfig(kv_cache_gib=3.0), str(tmp_path)) == pytest.approx(PROCESS + 3.0)


def test_what_cannot_be_read_counts_as_the_process_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert estimate(ModelConfig(), str(tmp_path)) == PROCESS
    assert estimate(ModelConfig(backend="fake"), "/nowhere") == PROCESS

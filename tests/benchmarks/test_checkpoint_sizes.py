"""Sizes counted from a checkpoint's files equal the sizes of its tensors."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.checkpoint_sizes import kv_bytes_per_token, weight_bytes


def test_layers_count_in_the_bytes_they_are_held_in_and_the_rest_in_others(tmp_path: Path) -> None:
    first = {"embed_tokens.weight": torch.zeros(10, 4)}
    second = {"fc1.weight": torch.zeros(6, 4), "fc1.bias": torch.zeros(6)}
    for number, weights in enumerate((first, second), start=1):
        save_file(weights, tmp_path / f"model-0000{number}-of-00002.safetensors", metadata={"format": "pt"})

    assert weight_bytes(tmp_path, 2, 1) == 2 * (40 + 6) + 24


@pytest.mark.parametrize(("dtype", "expected"), [("float32", 2 * 3 * 2 * 8 * 4), ("int8", 2 * 3 * 2 * (8 + 4))])
def test_keys_and_values_count_for_each_layer_and_kv_head(tmp_path: Path, dtype: str, expected: int) -> None:
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert kv_bytes_per_token(tmp_path, dtype) == expected


def test_the_size_of_a_head_is_the_one_that_is_given(tmp_path: Path) -> None:
    config = {"num_attention_heads": 4, "head_dim": 16, "hidden_size": 32, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert kv_bytes_per_token(tmp_path, "bfloat16") == 2 * 4 * 16 * 2

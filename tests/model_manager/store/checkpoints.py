"""Small checkpoints for the store's tests: real files, no model."""

import json
import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from millrace.model_manager.wire.config import EMBEDDED_MODEL

EMBEDDED = Path(__file__).parents[3] / "model_manager" / "store" / "embedded" / EMBEDDED_MODEL


def write_checkpoint(folder: Path, shards: int = 1, values: int = 1000, seed: int = 0) -> Path:
    """config.json, tokenizer.json and `shards` files of `values` random floats each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((EMBEDDED / name).read_bytes())
    random = np.random.default_rng(seed)
    names = (
        ["model.safetensors"] if shards == 1 else [f"model-{i:05}-of-{shards:05}.safetensors" for i in range(shards)]
    )
    for index, name in enumerate(names):
        save_file({f"weight.{index}": random.standard_normal(values, dtype=np.float32)}, folder / name)
    if shards > 1:
        index_file = {"weight_map": {f"weight.{index}": name for index, name in enumerate(names)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))
    return folder


def write_openvino(folder: Path, seed: int = 0) -> Path:
    """A folder with the names of OpenVINO's format, and noise for weights."""
    (write_checkpoint(folder) / "model.safetensors").unlink()
    (folder / "openvino_model.xml").write_text("<net/>")
    (folder / "openvino_model.bin").write_bytes(np.random.default_rng(seed).bytes(5_000_000))
    (folder / "openvino_tokenizer.xml").write_text("<net/>")
    return folder


def write_adapter(folder: Path, seed: int = 0) -> Path:
    """adapter_config.json and a file of random factors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    random = np.random.default_rng(seed)
    factors = {f"q_proj.lora_{half}.weight": random.standard_normal((2, 2), dtype=np.float32) for half in "AB"}
    save_file(factors, folder / "adapter_model.safetensors")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every visible file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def header_length(path: Path) -> int:
    """Bytes of a safetensors file before its tensors."""
    length: int = struct.unpack("<Q", path.read_bytes()[:8])[0]
    return 8 + length

"""LoRA adapters of random weights in peft's format, and a model with one merged into its weights."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from millrace.model_manager.store import find_adapter
from millrace.model_manager.wire.request import Adapter

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "random",
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.1,
    "bias": "none",
    "use_dora": False,
    "modules_to_save": None,
    "inference_mode": True,
}


def write(
    folder: Path,
    model: torch.nn.Module,
    targets: tuple[str, ...] = ("q_proj", "v_proj"),
    *,
    seed: int = 0,
    size: float = 0.5,
    ranks: dict[str, int] | None = None,
    **config: Any,
) -> Adapter:
    """Save an adapter of those linear layers whose names end so; `ranks` by that end where it is not r."""
    generator = torch.Generator().manual_seed(seed)
    settings = CONFIG | {"target_modules": list(targets), "rank_pattern": ranks or {}} | config
    tensors = {}
    for name, module in model.named_modules():
        end = next((each for each in targets if name.endswith(f".{each}")), None)
        if end is not None:
            out_features, in_features = shape_of(module)
            rank = (ranks or {}).get(end, settings["r"])
            key = f"base_model.model.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(rank, in_features, generator=generator) * size
            tensors[f"{key}.lora_B.weight"] = torch.randn(out_features, rank, generator=generator) * size
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return find_adapter(str(folder))


def shape_of(module: Any) -> tuple[int, int]:
    """(out_features, in_features), of GPT-2's Conv1D too, which holds its weight transposed."""
    shape = tuple(module.weight.shape)
    return shape if isinstance(module, torch.nn.Linear) else shape[::-1]


def merged(model: Any, adapter: Adapter, scale: float | dict[str, float]) -> Any:
    """A copy of the model with W + scale · B A in the place of W; a scale by the layer's last name, or one for all."""
    copy = deepcopy(model)
    tensors = load_file(Path(adapter.folder) / "adapter_model.safetensors")
    with torch.no_grad():
        for key, down in tensors.items():
            if not key.endswith(".lora_A.weight"):
                continue
            name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            up = tensors[key.replace("lora_A", "lora_B")]
            factor = scale[name.rpartition(".")[2]] if isinstance(scale, dict) else scale
            module = copy.get_submodule(name)
            delta = factor * up @ down
            module.weight += delta if isinstance(module, torch.nn.Linear) else delta.t()
    return copy

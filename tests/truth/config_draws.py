"""Random configs of the served architectures: one of the tests' configs with some fields of its class, or of others',
set to what somebody could set them to.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from tests.model_manager.engine.random_checkpoints import POSITIONS
from tests.model_manager.engine.tested_models import MODELS, ModelCase

_ACTIVATIONS = ("gelu", "relu", "silu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "relu2", "tanh")
_FIXED = frozenset(
    "architectures bos_token_id dtype eos_token_id id2label label2id max_position_embeddings mm_tokens_per_image"
    " is_encoder_decoder model_type n_positions output_hidden_states pad_token_id problem_type return_dict sep_token_id"
    " task_specific_params text_config tokenizer_class"
    " transformers_version vision_config vocab_size".split()
)
"""Not varied: tokens, the form of outputs, and what is said of a checkpoint beside its computation."""
_SIZES: dict[str, tuple[Any, ...]] = {
    "head_dim": (8, 16, 32, 48),
    "hidden_size": (48, 64, 128),
    "n_embd": (48, 64, 128),
    "intermediate_size": (48, 80, 128),
    "num_hidden_layers": (1, 2, 4),
    "n_layer": (1, 2, 4),
    "num_attention_heads": (2, 4, 8),
    "n_head": (2, 4, 8),
    "num_key_value_heads": (1, 2, 4, None),
    "num_kv_heads": (1, 2, 4),
    "sliding_window": (8, 16, 23, 40, 4096, None),
    "layer_types": (["full_attention"], ["sliding_attention"], ["sliding_attention", "full_attention"]),
    "max_window_layers": (0, 1, 2),
    "is_causal": (False, True),
    "use_bidirectional_attention": (True, False),
    "no_rope_layers": ([1], [0], [0, 1]),
    "first_k_dense_replace": (0, 1, 2),
    "mlp_only_layers": ([], [0], [1]),
    "num_experts_per_tok": (1, 2),
    "decoder_sparse_step": (1, 2),
    "attention_chunk_size": (16,),
    "attn_logit_softcapping": (1.0, 5.0, 50.0, None),
    "final_logit_softcapping": (1.0, 5.0, None),
    "logit_scale": (0.1, 3.0),
    "clip_qkv": (0.5, 8.0, None),
    "alibi": (True,),
}
"""By name; lists are repeated for all layers."""
_OF_OTHERS = (
    *("is_causal", "layer_types", "sliding_window", "use_bidirectional_attention", "attn_logit_softcapping"),
    *("attention_chunk_size", "final_logit_softcapping", "logit_scale", "alibi"),
)
"""Fields that configs have without their class declaring them."""


@dataclass(frozen=True)
class Draw:
    """A case with some of its config's fields changed."""

    case: ModelCase
    changes: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.case.make.__name__} {json.dumps(self.changes, default=str)}"

    def config(self) -> Any:
        """As transformers makes it of the fields; raises whatever it raises for those that it does not take."""
        base = self.case.make()
        values: dict[str, Any] = base.to_dict() | self.changes
        depth = values.get("num_hidden_layers") or values.get("n_layer")
        for name in ("layer_types", "no_rope_layers"):
            if name in self.changes or isinstance(values.get(name), list):
                values[name] = (values[name] * depth)[:depth]
        return type(base)(**{name: value for name, value in values.items() if name != "model_type"})


def draw(chance: random.Random, architecture: str | None = None) -> Draw:
    """One at random, of that architecture if it is named."""
    cases = [case for case in MODELS if architecture in (None, case.architecture)]
    case = chance.choice(cases)
    names = sorted({field.name for field in fields(type(case.make()))} - _FIXED)
    chosen = [*chance.sample(names, chance.randint(1, 3)), *chance.sample(_OF_OTHERS, chance.random() < 0.3)]
    return Draw(case, {name: _value(chance, name, case) for name in chosen})


def each_alone(case: ModelCase) -> list[Draw]:
    """Every field of a case's config class, and of other classes, with each of its values alone."""
    chance, config = random.Random(0), case.make()
    names = sorted(({field.name for field in fields(type(config))} | {*_OF_OTHERS}) - _FIXED)
    draws: dict[str, Draw] = {}
    for name in names:
        values = _SIZES.get(name) or [_value(chance, name, case) for _ in range(8)]
        for value in values:
            one = Draw(case, {name: value})
            if value != getattr(config, name, None):
                draws.setdefault(str(one), one)
    return list(draws.values())


def _value(chance: random.Random, name: str, case: ModelCase) -> Any:
    if name in _SIZES:
        return chance.choice(_SIZES[name])
    value = getattr(case.make(), name, None)
    if name == "rope_parameters":
        return _rope(chance, value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, str) and ("act" in name):
        return chance.choice(_ACTIVATIONS)
    change = _CHANGES.get(type(value))
    return change(chance, value) if change else value


def _rope(chance: random.Random, before: Any) -> Any:
    """Rotary parameters of another kind; a model with one kind for each type of layer keeps its own."""
    if not before or any(isinstance(value, dict) for value in before.values()):
        return before
    factor = {"factor": chance.choice([2.0, 8.0])}
    original = {"original_max_position_embeddings": POSITIONS // 4}
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    kinds: list[dict[str, Any]] = [
        {"rope_type": "default"},
        {"rope_type": "linear"} | factor,
        {"rope_type": "dynamic"} | factor,
        {"rope_type": "yarn"} | factor | original,
        {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 0.5} | factor | original,
        {"rope_type": "llama3"} | factor | original | bands,
    ]
    kept = {name: before[name] for name in ("partial_rotary_factor",) if name in before}
    return chance.choice(kinds) | kept | {"rope_theta": chance.choice([1e4, 1e6])}


_CHANGES: dict[type, Callable[[random.Random, Any], Any]] = {
    float: lambda chance, value: chance.choice([0.5, 2.0]) * value if value else 0.1,
    int: lambda chance, value: max(0, value + chance.choice([-1, 1])),
    type(None): lambda chance, _: chance.choice([None, True, 2]),
}

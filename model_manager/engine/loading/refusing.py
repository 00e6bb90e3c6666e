"""Errors of a load: failures while weights are read, named; and the sentence that refuses a model, which names config
fields that the engine does not know.

A field is known if every decoder has it, or if its class in transformers declares it and it is a size, a token or
listed below. Any other field that is not at its default may be why a check failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import torch

from ...wire.errors import ModelCorrupt, ModelDoesNotFit, ModelUnsupported
from ...wire.machine import is_shortage, shortage

_MOST_NAMED = 8
_LONGEST_VALUE = 60
_METADATA = frozenset(
    "architectures auto_map dtype id2label label2id model_type name_or_path num_labels problem_type quantization_config"
    " return_dict task_specific_params torch_dtype transformers_version use_cache".split()
)
"""Fields of any config on which no computation depends, declared by its class or not."""
_KNOWN = frozenset(
    "activation_function activation hidden_act hidden_activation attention_bias attention_dropout attention_multiplier"
    " bias embedding_multiplier enable_bias feed_forward_proj ffn_dim ffn_hidden_size first_k_dense_replace head_dim"
    " hidden_size initializer_range intermediate_size kv_lora_rank layer_norm_eps layer_norm_epsilon layer_types"
    " logits_scaling max_position_embeddings max_window_layers mlp_bias moe_intermediate_size n_embd n_head n_inner"
    " n_layer n_positions norm_eps norm_epsilon num_attention_heads num_experts num_experts_per_tok num_hidden_layers"
    " num_key_value_heads num_kv_heads num_layers num_local_experts partial_rotary_factor pretraining_tp q_lora_rank"
    " qk_nope_head_dim qk_rope_head_dim query_pre_attn_scalar residual_multiplier rms_norm_eps rope_parameters"
    " rotary_emb_base rotary_pct sliding_window tie_word_embeddings use_bias use_sliding_window v_head_dim vocab_size"
    " word_embed_proj_dim embd_pdrop attn_pdrop resid_pdrop dropout hidden_dropout".split()
)
"""Fields that the engine computes as transformers' code does, if the config's class declares them."""


@contextmanager
def damage_named(folder: Path, *signs: type[Exception]) -> Iterator[None]:
    """Within, errors of the classes `signs` become ModelCorrupt, or ModelDoesNotFit if memory ran out."""
    try:
        yield
    except Exception as error:
        if is_shortage(error):
            raise ModelDoesNotFit(f"{folder}: memory ran out while the weights were loaded: {shortage()}") from None
        if isinstance(error, torch.OutOfMemoryError):
            raise ModelDoesNotFit(f"{folder}: memory ran out while the weights were loaded") from None
        if not isinstance(error, signs):
            raise
        raise ModelCorrupt(f"{folder}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from None


def not_served(model: Any, reason: str) -> ModelUnsupported:
    """The error for a transformers model that failed a check."""
    named = ", ".join(unknown_fields(model.config.get_text_config(decoder=True)))
    hint = f"; its config has {named}" if named else ""
    first_line = reason.partition("\n")[0]
    return ModelUnsupported(f"architecture {type(model).__name__} is not served: {first_line}{hint}")


def unknown_fields(config: Any) -> list[str]:
    """`name=value` of each field that is neither known nor at its default, at most some of them."""
    declared: dict[str, Field[Any]] = {field.name: field for field in fields(type(config))}
    found = list(_unknown(vars(config), declared))
    return found if len(found) <= _MOST_NAMED else [*found[:_MOST_NAMED], "…"]


def _unknown(values: dict[str, Any], declared: dict[str, Field[Any]]) -> Iterator[str]:
    for name, value in values.items():
        is_known = name in _METADATA or name.endswith(("_token_id", "_token_index"))
        if name in declared:
            is_known = is_known or name in _KNOWN or value == _default(declared[name])
        if not (is_known or name.startswith("_")):
            yield f"{name}={_shown(value)}"
    if "_heterogeneity_spec" in values:
        yield "per_layer_config"


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _shown(value: Any) -> str:
    text = {True: "true", False: "false", None: "null"}.get(value) if isinstance(value, bool | None) else repr(value)
    assert text is not None
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"

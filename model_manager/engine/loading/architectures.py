"""The architectures that are served, and a sentence each on why others are not (docs/reference/models.md).

Judges a model by its config and its class in transformers; attention_probe and self_check judge by running it.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from ...wire.errors import ConfigError, ModelUnsupported

log = logging.getLogger(__name__)

TESTED = (
    "CohereForCausalLM",
    "DeepseekV3ForCausalLM",
    "FalconForCausalLM",
    "GPT2LMHeadModel",
    "GPTBigCodeForCausalLM",
    "GPTNeoXForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GemmaForCausalLM",
    "Glm4ForCausalLM",
    "GptOssForCausalLM",
    "GraniteForCausalLM",
    "GraniteMoeForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "OPTForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "OlmoForCausalLM",
    "OlmoeForCausalLM",
    "Phi3ForCausalLM",
    "PhiForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "SmolLM3ForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
)
"""Architectures whose greedy outputs are tested token for token against transformers' own generation."""

_TEXT_PART = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
"""Models of several modalities whose text part is served as a language model."""
TEXT_PART_KEYS = {r"^language_model\.": "", r"^model\.language_model\.": "model."}
"""Names of a text part's weights: patterns of the whole model's names, and the text part's."""
OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
"""Prefixes of weights that a text part does not need."""
_ATTENDING = ("full_attention", "sliding_attention")
_LENGTH_BOUND_ROPE = ("dynamic", "longrope")
"""Ropes that change frequencies for the whole batch once one sequence outgrows the original length."""


def served_architecture(config: Any) -> str:
    """The name of a config's class in transformers; raises ModelUnsupported, with the reason, for what cannot be served
    right.
    """
    name = str(config.architectures[0]) if config.architectures else _architecture_of_type(config.model_type)
    reason = _refusal(name, config)
    if reason:
        raise ModelUnsupported(f"architecture {name} is not served: {reason}")
    if name not in TESTED:
        log.warning("%s is not among the tested architectures: it is served if it passes a check at load", name)
    return name


def text_part(config: Any) -> Any | None:
    """The config of a model's text part, if that is served instead of the whole."""
    name = (config.architectures or [""])[0]
    if name not in _TEXT_PART:
        return None
    text = config.get_text_config(decoder=True)
    text.architectures = [_TEXT_PART[name]]
    text.tie_word_embeddings = config.tie_word_embeddings
    return text


def longest_context(config: Any, setting: int | None) -> int:
    """Most tokens of a sequence: the setting, or the model's own; raises ConfigError for a setting above that.

    Beyond the original length of a `longrope` or `dynamic` rope an answer would depend on its company. Sequences end
    there, and the log says so.
    """
    text = config.get_text_config(decoder=True)
    positions = int(text.max_position_embeddings)
    served, why = positions, ""
    for rope in _ropes(text):
        if rope.get("rope_type") in _LENGTH_BOUND_ROPE:
            served = min(served, int(rope.get("original_max_position_embeddings") or positions))
            why = f": rope type {rope['rope_type']} makes longer answers depend on the rest of their batch"
    if setting is not None and setting > served:
        raise ConfigError(
            f"max_model_len={setting}: this model takes at most {served}{why if served < positions else ''}"
        )
    if setting is None and served < positions:
        log.warning("max_model_len is %d, not %d%s", served, positions, why)
    return setting or served


def feed_forward_size(config: Any) -> int:
    """Most values of a token inside a feed-forward part; all of a token's experts count together."""
    text = config.get_text_config(decoder=True)
    names = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
    dense = max(_largest(getattr(text, name, None)) for name in names) or 4 * text.hidden_size
    expert = _largest(getattr(text, "moe_intermediate_size", None)) or dense
    return max(dense, expert * (_largest(getattr(text, "num_experts_per_tok", None)) or 1))


def _largest(size: Any) -> int:
    """The largest size, where a config gives one for each layer; 0 for none."""
    return max(map(int, size), default=0) if isinstance(size, list | tuple) else int(size or 0)


def refusal_of_type(model_type: str) -> str | None:
    """The refusal of a model type whose config cannot be read, if no model of that type is served; else None."""
    try:
        name = _architecture_of_type(model_type)
    except ModelUnsupported:
        return None
    reason = _refusal_by_class(name) if name not in TESTED else None
    return f"architecture {name} is not served: {reason}" if reason else None


def _architecture_of_type(model_type: str) -> str:
    """The class that transformers uses for a language model of that type; importing the table takes seconds."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if found is None:
        raise ModelUnsupported(
            f"config.json names no architecture, and transformers {transformers.__version__} has no decoder-only "
            f"language model of model_type {model_type!r}: put its class's name into architectures"
        )
    return found if isinstance(found, str) else str(found[0])


def _refusal(name: str, config: Any) -> str | None:
    """Why an architecture is not served, or None."""
    if config.is_heterogeneous:
        return "its layers differ from each other in size (per_layer_config), and a KV cache has one size for all"
    text = config.get_text_config(decoder=True)
    if sees_ahead := _seeing_ahead(text):
        return f"its config says that attention sees later tokens too ({sees_ahead}), which generation cannot"
    kinds = {*(getattr(text, "layer_types", None) or ())} - {*_ATTENDING}
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder, and only decoder-only language models are"
    if name not in TESTED and (reason := _refusal_by_class(name)):
        return reason
    if text is not config:
        return "it is a model of several modalities, and only text models are"
    if kinds:
        return f"it has layers of type {', '.join(sorted(kinds))}; served are {' and '.join(_ATTENDING)}"
    if "alibi" in type(text).__dataclass_fields__ and text.alibi:
        return "its attention is biased by distance (alibi), which the kernels do not compute"
    return None


def _seeing_ahead(text: Any) -> str | None:
    """The field of a config that lets attention see later tokens, with its value."""
    if getattr(text, "is_causal", True) is False:  # transformers' masks go by it, whatever the class declares
        return "is_causal=false"
    bidirectional = "use_bidirectional_attention"
    if bidirectional in type(text).__dataclass_fields__ and getattr(text, bidirectional) in (True, "all"):
        return f"{bidirectional}={json.dumps(getattr(text, bidirectional))}"
    return None


def _refusal_by_class(name: str) -> str | None:
    """Why an untested architecture is not served, by its class; importing that takes seconds."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found: Any = getattr(transformers, name, None)
    language_models: set[str] = set()
    for value in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        language_models |= {value} if isinstance(value, str) else {*value}
    if found is None or name not in language_models:
        return f"transformers {transformers.__version__} has no decoder-only language model of that name"
    if getattr(found, "_is_stateful", False):
        return "it keeps a running state (linear attention or a state space), not keys and values"
    if not getattr(found, "_supports_attention_backend", False):
        return "its attention is code of its own, which does not call transformers' attention functions"
    return None


def _ropes(text: Any) -> list[dict[str, Any]]:
    """The rope parameters of a config: one set, or one for each type of layer."""
    parameters: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]

"""What a transformers model consists of, for those whose layers the compiled step knows: norms, products, attention.

A layer is  x += attention(norm(x));  x += mlp(norm(x)).  Reads modules; computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from model_manager.engine.matrix_ops import Epilogue
from model_manager.engine.paged_attention import AttentionOptions
from model_manager.engine.row_ops import Norm

Embed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""[T] token ids and positions to [T, hidden_size]."""
Angles = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""[T] positions to float32 cosines and sines, each [T, half the rotated dimensions]."""


@dataclass(frozen=True)
class NormPlan:
    """A normalisation with float32 weight and bias [dim]."""

    kind: Norm
    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float


@dataclass(frozen=True)
class LayerPlan:
    """One decoder layer."""

    attention_norm: NormPlan
    inputs: tuple[nn.Linear, nn.Linear, nn.Linear]
    """Query, key and value."""
    head_norms: tuple[NormPlan, NormPlan] | None
    """Of each query and key head, before they are rotated."""
    options: AttentionOptions
    output: nn.Linear
    mlp_norm: NormPlan
    up: tuple[nn.Linear, ...]
    """One, or gate and up."""
    activation: Epilogue
    down: nn.Linear

    @property
    def linears(self) -> tuple[nn.Linear, ...]:
        """All of the layer's."""
        return (*self.inputs, self.output, *self.up, self.down)


@dataclass(frozen=True)
class DecoderPlan:
    """A whole model."""

    embed: Embed
    angles: Angles | None
    rotated_half: int
    """Half the rotated dimensions of a head, 0 for none."""
    layers: tuple[LayerPlan, ...]
    norm: NormPlan
    head: nn.Linear


def plan_decoder(model: Any) -> DecoderPlan | None:
    """The plan of a loaded model, or None if its architecture, or a variant it uses, is not one of those known here."""
    planner = _PLANNERS.get(type(model).__name__)
    return planner(model) if planner else None


def _plan_opt(model: Any) -> DecoderPlan | None:
    decoder, config = model.model.decoder, model.config
    known = config.do_layer_norm_before and decoder.project_in is None and config.activation_function == "relu"
    if not known or not config.layer_norm_elementwise_affine or decoder.final_layer_norm is None:
        return None
    tokens, positions = decoder.embed_tokens.weight, decoder.embed_positions

    def embed(token_ids: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = nn.functional.embedding(where + positions.offset, positions.weight)
        return rows + nn.functional.embedding(token_ids, tokens)

    return DecoderPlan(
        embed=embed,
        angles=None,
        rotated_half=0,
        layers=tuple(_opt_layer(layer) for layer in decoder.layers),
        norm=_layer_norm(decoder.final_layer_norm),
        head=model.lm_head,
    )


def _opt_layer(layer: Any) -> LayerPlan:
    attention = layer.self_attn
    return LayerPlan(
        attention_norm=_layer_norm(layer.self_attn_layer_norm),
        inputs=(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=None,
        options=AttentionOptions(scale=attention.scaling),
        output=attention.out_proj,
        mlp_norm=_layer_norm(layer.final_layer_norm),
        up=(layer.fc1,),
        activation=Epilogue.RELU,
        down=layer.fc2,
    )


def _plan_llama(model: Any) -> DecoderPlan | None:
    """Llama and those built like it: Mistral, Qwen2, Qwen3."""
    decoder, rotary = model.model, model.model.rotary_emb
    if model.config.hidden_act != "silu":
        return None

    def embed(token_ids: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(token_ids, decoder.embed_tokens.weight)

    def angles(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = rotary(torch.zeros(1), positions[None])  # the format of the first argument is that of the result
        half = cos.shape[-1] // 2
        return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()

    return DecoderPlan(
        embed=embed,
        angles=angles,
        rotated_half=len(rotary.inv_freq),
        layers=tuple(_llama_layer(layer, model.config) for layer in decoder.layers),
        norm=_rms_norm(decoder.norm),
        head=model.lm_head,
    )


def _llama_layer(layer: Any, config: Any) -> LayerPlan:
    attention, mlp = layer.self_attn, layer.mlp
    norms = (_rms_norm(attention.q_norm), _rms_norm(attention.k_norm)) if hasattr(attention, "q_norm") else None
    everywhere = config.sliding_window if config.model_type == "mistral" else None
    return LayerPlan(
        attention_norm=_rms_norm(layer.input_layernorm),
        inputs=(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=norms,
        options=AttentionOptions(scale=attention.scaling, window=getattr(attention, "sliding_window", everywhere)),
        output=attention.o_proj,
        mlp_norm=_rms_norm(layer.post_attention_layernorm),
        up=(mlp.gate_proj, mlp.up_proj),
        activation=Epilogue.SWIGLU,
        down=mlp.down_proj,
    )


def _layer_norm(norm: nn.LayerNorm) -> NormPlan:
    return NormPlan(Norm.LAYER, norm.weight.float().clone(), norm.bias.float().clone(), norm.eps)


def _rms_norm(norm: Any) -> NormPlan:
    weight = norm.weight.float().clone()
    return NormPlan(Norm.RMS, weight, torch.zeros_like(weight), norm.variance_epsilon)


_PLANNERS: dict[str, Callable[[Any], DecoderPlan | None]] = {
    "OPTForCausalLM": _plan_opt,
    "LlamaForCausalLM": _plan_llama,
    "MistralForCausalLM": _plan_llama,
    "Qwen2ForCausalLM": _plan_llama,
    "Qwen3ForCausalLM": _plan_llama,
}

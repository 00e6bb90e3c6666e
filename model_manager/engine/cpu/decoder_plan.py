"""A model's parts, for architectures that the compiled step knows: norms, products, attention.

A layer is x += attention(norm(x)); x += mlp(norm(x)). Read from a transformers config alone, or from its fields as
they were kept: names and shapes of parameters, as transformers saves them; no parameter itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..paged_attention import AttentionLayout, AttentionOptions
from .matrix_ops import Epilogue
from .row_ops import Norm

Shapes = Iterator[tuple[str, tuple[int, ...]]]
COMPUTED_ROPE = "computed_rope"
"""Field of a kept config that holds its Rope."""
_OPT_NORM_EPSILON = 1e-5
_OPT_POSITION_OFFSET = 2


@dataclass(frozen=True)
class NormPlan:
    """A normalisation with a weight [dim] and, in some models, a bias [dim]."""

    kind: Norm
    weight: str
    bias: str | None
    dim: int
    epsilon: float
    stored_less: float = 0.0
    """How much a stored weight is below its factor (Gemma)."""

    @property
    def shapes(self) -> Shapes:
        yield self.weight, (self.dim,)
        if self.bias:
            yield self.bias, (self.dim,)


@dataclass(frozen=True)
class LinearPlan:
    """A product with a weight [out_features, in_features] and, in some models, a bias."""

    weight: str
    bias: str | None
    out_features: int
    in_features: int

    @property
    def shapes(self) -> Shapes:
        yield self.weight, (self.out_features, self.in_features)
        if self.bias:
            yield self.bias, (self.out_features,)


@dataclass(frozen=True)
class LayerPlan:
    """One decoder layer."""

    attention_norm: NormPlan
    inputs: tuple[LinearPlan, LinearPlan, LinearPlan]
    """Query, key and value."""
    head_norms: tuple[NormPlan, NormPlan] | None
    """Norms of each query head and key head, before rotation."""
    options: AttentionOptions
    output: LinearPlan
    mlp_norm: NormPlan
    up: tuple[LinearPlan, ...]
    """One, or gate and up."""
    activation: Epilogue
    down: LinearPlan

    @property
    def shapes(self) -> Shapes:
        """Shapes of this layer's parameters, by name."""
        norms = (self.attention_norm, *(self.head_norms or ()), self.mlp_norm)
        for part in (*norms, *self.inputs, self.output, *self.up, self.down):
            yield from part.shapes


@dataclass(frozen=True)
class PositionTable:
    """Learned embeddings of positions [rows, hidden_size]; position 0 is row `offset`."""

    weight: str
    rows: int
    offset: int


@dataclass(frozen=True)
class Rope:
    """Angles by which heads are rotated: position x inverse_frequencies; their sines and cosines are x scale."""

    inverse_frequencies: torch.Tensor
    scale: float


@dataclass(frozen=True)
class DecoderPlan:
    """A whole model."""

    tokens: str
    """The embedding [vocab_size, hidden_size]; tied to the head if both have the same name."""
    positions: PositionTable | None
    rope: Rope | None
    layers: tuple[LayerPlan, ...]
    norm: NormPlan
    head: LinearPlan
    layout: AttentionLayout
    embedding_scale: float = 1.0

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.head.weight == self.tokens

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, by name."""
        hidden = self.head.in_features
        shapes: dict[str, tuple[int, ...]] = {self.tokens: (self.head.out_features, hidden)}
        if self.positions:
            shapes[self.positions.weight] = (self.positions.rows, hidden)
        parts: list[LayerPlan | NormPlan | LinearPlan] = [*self.layers, self.norm, self.head]
        for part in parts:
            shapes.update(part.shapes)
        return shapes


def plan_decoder(architecture: str, config: Any) -> DecoderPlan | None:
    """The plan of a model, or None if its architecture, or a variant that it uses, is not known here."""
    planner = _PLANNERS.get(architecture)
    return planner(config) if planner else None


def _plan_opt(config: Any) -> DecoderPlan | None:
    known = config.do_layer_norm_before and config.word_embed_proj_dim == config.hidden_size
    known = known and config.activation_function == "relu" and config.layer_norm_elementwise_affine
    if not known or config._remove_final_layer_norm:
        return None
    tokens, heads = "model.decoder.embed_tokens.weight", config.num_attention_heads
    return DecoderPlan(
        tokens=tokens,
        positions=PositionTable(
            "model.decoder.embed_positions.weight",
            config.max_position_embeddings + _OPT_POSITION_OFFSET,
            _OPT_POSITION_OFFSET,
        ),
        rope=None,
        layers=tuple(_opt_layer(f"model.decoder.layers.{index}", config) for index in range(config.num_hidden_layers)),
        norm=_layer_norm("model.decoder.final_layer_norm", config.hidden_size, _OPT_NORM_EPSILON),
        head=_head(config, tokens),
        layout=_layout(config, heads, config.hidden_size // heads, [None] * config.num_hidden_layers),
    )


def _opt_layer(name: str, config: Any) -> LayerPlan:
    hidden, has_bias = config.hidden_size, config.enable_bias
    query, key, value, output = (
        _linear(f"{name}.self_attn.{part}", hidden, hidden, bias=has_bias)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj")
    )
    return LayerPlan(
        attention_norm=_layer_norm(f"{name}.self_attn_layer_norm", hidden, _OPT_NORM_EPSILON),
        inputs=(query, key, value),
        head_norms=None,
        options=AttentionOptions(scale=(hidden // config.num_attention_heads) ** -0.5),
        output=output,
        mlp_norm=_layer_norm(f"{name}.final_layer_norm", hidden, _OPT_NORM_EPSILON),
        up=(_linear(f"{name}.fc1", config.ffn_dim, hidden, bias=has_bias),),
        activation=Epilogue.RELU,
        down=_linear(f"{name}.fc2", hidden, config.ffn_dim, bias=has_bias),
    )


def _plan_llama(config: Any) -> DecoderPlan | None:
    """Llama and architectures built like it."""
    rope = _rope(config)
    is_known = config.hidden_act in _ACTIVATIONS[_has_gate(config)]
    if rope is None or not is_known:
        return None
    windows = _windows(config)
    heads, tokens = config.num_attention_heads, "model.embed_tokens.weight"
    return DecoderPlan(
        tokens=tokens,
        positions=None,
        rope=rope,
        layers=tuple(_llama_layer(f"model.layers.{index}", config, window) for index, window in enumerate(windows)),
        norm=_norm("model.norm", config.hidden_size, config),
        head=_head(config, tokens),
        layout=_layout(config, config.num_key_value_heads or heads, _head_dim(config), windows),
        embedding_scale=config.hidden_size**0.5 if config.model_type == "gemma" else 1.0,
    )


def _llama_layer(name: str, config: Any, window: int | None) -> LayerPlan:
    hidden, dim = config.hidden_size, _head_dim(config)
    queries, keys = config.num_attention_heads * dim, (config.num_key_value_heads or config.num_attention_heads) * dim
    is_qwen2 = config.model_type == "qwen2"
    has_bias = is_qwen2 or bool(getattr(config, "attention_bias", False) or getattr(config, "use_bias", False))
    norms = [_norm(f"{name}.self_attn.{part}", dim, config) for part in ("q_norm", "k_norm")]
    up, down = _feed_forward(f"{name}.mlp", config)
    return LayerPlan(
        attention_norm=_norm(f"{name}.input_layernorm", hidden, config),
        inputs=(
            _linear(f"{name}.self_attn.q_proj", queries, hidden, bias=has_bias),
            _linear(f"{name}.self_attn.k_proj", keys, hidden, bias=has_bias),
            _linear(f"{name}.self_attn.v_proj", keys, hidden, bias=has_bias),
        ),
        head_norms=(norms[0], norms[1]) if config.model_type == "qwen3" else None,
        options=AttentionOptions(scale=dim**-0.5, window=window),
        output=_linear(f"{name}.self_attn.o_proj", hidden, queries, bias=has_bias and not is_qwen2),
        mlp_norm=_norm(f"{name}.post_attention_layernorm", hidden, config),
        up=up,
        activation=_ACTIVATIONS[_has_gate(config)][config.hidden_act],
        down=down,
    )


def _feed_forward(name: str, config: Any) -> tuple[tuple[LinearPlan, ...], LinearPlan]:
    """The products before the activation, and the one after it."""
    hidden, inner = config.hidden_size, config.intermediate_size
    bias = bool(getattr(config, "mlp_bias", False) or getattr(config, "use_bias", False))
    if _has_gate(config):
        gate, up = (_linear(f"{name}.{part}", inner, hidden, bias=bias) for part in ("gate_proj", "up_proj"))
        return (gate, up), _linear(f"{name}.down_proj", hidden, inner, bias=bias)
    return (_linear(f"{name}.c_fc", inner, hidden, bias=bias),), _linear(f"{name}.c_proj", hidden, inner, bias=bias)


def _has_gate(config: Any) -> bool:
    return bool(config.model_type != "starcoder2")


def _windows(config: Any) -> list[int | None]:
    """Each layer's window, as transformers' code has it: its Llama and Gemma ignore these fields."""
    if config.model_type in ("mistral", "starcoder2"):
        return [config.sliding_window] * config.num_hidden_layers
    if config.model_type in ("qwen2", "qwen3"):
        return [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]
    return [None] * config.num_hidden_layers


def _rope(config: Any) -> Rope | None:
    """The rotary embedding that transformers makes from the config, or has made before; None if a model has several."""
    if isinstance(computed := getattr(config, COMPUTED_ROPE, None), Rope):
        return computed
    parameters = config.rope_parameters
    kind = parameters.get("rope_type")
    if kind == "default":
        dim = _head_dim(config)
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        return Rope(1.0 / parameters["rope_theta"] ** exponents, 1.0)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # which takes half a second

    if kind not in ROPE_INIT_FUNCTIONS:
        return None
    return Rope(*ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu")))


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _layout(config: Any, kv_heads: int, dim: int, windows: list[int | None]) -> AttentionLayout:
    return AttentionLayout(config.num_attention_heads, kv_heads, dim, tuple(windows), config.vocab_size)


def _head(config: Any, tokens: str) -> LinearPlan:
    name = tokens if config.tie_word_embeddings else "lm_head.weight"
    return LinearPlan(name, None, config.vocab_size, config.hidden_size)


def _linear(name: str, out_features: int, in_features: int, *, bias: bool) -> LinearPlan:
    return LinearPlan(f"{name}.weight", f"{name}.bias" if bias else None, out_features, in_features)


def _layer_norm(name: str, dim: int, epsilon: float) -> NormPlan:
    return NormPlan(Norm.LAYER, f"{name}.weight", f"{name}.bias", dim, epsilon)


def _norm(name: str, dim: int, config: Any) -> NormPlan:
    """Norms as in Llama."""
    if config.model_type == "starcoder2":
        return _layer_norm(name, dim, config.norm_epsilon)
    stored_less = 1.0 if config.model_type == "gemma" else 0.0
    return NormPlan(Norm.RMS, f"{name}.weight", None, dim, config.rms_norm_eps, stored_less)


_ACTIVATIONS = {
    True: {
        "silu": Epilogue.SWIGLU,
        "gelu_pytorch_tanh": Epilogue.GEGLU_TANH,
    },
    False: {"gelu_pytorch_tanh": Epilogue.GELU_TANH},
}
"""Activations, by whether there is a gate, and by the config's name."""
_PLANNERS: dict[str, Callable[[Any], DecoderPlan | None]] = {
    "GemmaForCausalLM": _plan_llama,
    "LlamaForCausalLM": _plan_llama,
    "MistralForCausalLM": _plan_llama,
    "OPTForCausalLM": _plan_opt,
    "Qwen2ForCausalLM": _plan_llama,
    "Qwen3ForCausalLM": _plan_llama,
    "Starcoder2ForCausalLM": _plan_llama,
}

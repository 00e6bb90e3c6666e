"""Runs a decoder on a CPU as one compiled program per step: products, norms and attention without Python in between.

Serves the models that decoder_plan.py knows; others run through transformers' code (model_runner.py). The residual
stream is float32 whatever the weights' format. After the last layer's attention, only rows that are wanted go on; for a
prompt's other rows keys and values are enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..interface import Longs, StepInput, StepOutput
from ..paged_attention import CacheShape
from .attention import CpuAttention
from .decoder_plan import DecoderPlan, LayerPlan, Rope
from .decoder_weights import DecoderWeights, KeptTensors
from .matrix_ops import LANES, Epilogue, Format
from .parameter_reader import Parameters
from .records import Linear, Normalize
from .step_emitter import Emitter, Rotation, Rows
from .team import Team
from .units import unit_of


def obstacle(plan: DecoderPlan, shape: CacheShape, fmt: Format) -> str | None:
    """Why a model cannot run as a compiled program on this processor, after "because"; None if it can."""
    if unit_of(fmt, LANES) is None:
        return "this processor has no AVX2 instructions"
    sizes = [plan.head.in_features, shape.head_dim, shape.num_heads * shape.head_dim]
    sizes += [layer.down.in_features for layer in plan.layers]
    odd = [size for size in sizes if size % LANES]
    return f"a size of {odd[0]} is no multiple of {LANES}" if odd else None


class CompiledRunner:
    """A ModelRunner (interface.py) of a DecoderPlan on a CPU."""

    has_graphs = False
    runs_ahead = False  # the processor that would prepare the next step computes this one

    def __init__(
        self,
        plan: DecoderPlan,
        parameters: Parameters,
        attention: CpuAttention,
        shape: CacheShape,
        fmt: Format,
        *,
        max_tokens: int,
        max_model_len: int,
        eos_token_ids: list[int],
        num_threads: int,
        kept: KeptTensors | None = None,
    ) -> None:
        """`max_tokens` is the most that a step computes; `parameters` are taken and packed layer by layer, but for what
        `kept` has.
        """
        self.vocab_size = plan.head.out_features
        self.max_model_len = max_model_len
        self.num_blocks = shape.num_blocks
        self.block_size = shape.block_size
        self.bytes_per_block = shape.bytes_per_block
        self.eos_token_ids = eos_token_ids
        self._plan = plan
        self._attention = attention
        self._buffers = _Buffers(plan, shape, fmt, max_tokens)
        self._max_tokens = max_tokens
        team = Team(num_threads)
        self._body, self._last, self._head, self._final, self._given_head = (Emitter(team) for _ in range(5))
        weights = DecoderWeights(parameters, fmt, shape.dtype, kept)
        for index, layer in enumerate(plan.layers):
            self._emit_layer(index, layer, weights, shape)
        self._emit_head(weights)

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepOutput:
        """Compute the batch, writing keys and values to `slots`."""
        count = len(step.token_ids)
        assert count <= self._max_tokens
        self._embed(torch.from_numpy(step.token_ids), torch.from_numpy(step.positions))
        self._attention.begin(step)
        self._body.run(count)
        wanted, places = np.unique(np.concatenate((step.logits_rows, step.hidden_rows)), return_inverse=True)
        self._finish_rows(wanted, count)
        logits_places, hidden_places = np.split(places, [len(step.logits_rows)])
        return StepOutput(
            logits=self._logits_of_rows(logits_places),
            hidden=self._hidden_of_rows(hidden_places) if len(hidden_places) else None,
        )

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The output head alone: float32 logits [N, vocab_size] of final hidden states [N, hidden_size]."""
        parts = []
        for part in hidden.split(self._max_tokens):
            self._buffers.given.tensor[: len(part)] = part
            parts.append(self._multiply_head(self._given_head, self._given_product, len(part)))
        return torch.cat(parts)

    def give_back(self, first_block: int) -> None:
        """Give the memory of this block and all after it back to the system; they take memory again once written."""
        self._attention.give_back(first_block)

    def warm_up(self) -> None:
        """Compute one short batch, so that whatever is compiled on first use is compiled; leaves block 0 unread."""
        self.execute(StepInput.of_first_tokens(1))

    def _embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> None:
        count, buffers = len(token_ids), self._buffers
        embedded = self._embed_rows(token_ids, positions)
        buffers.stream.tensor[:count, : embedded.shape[1]] = embedded
        if self._plan.rope is not None:
            cos, sin = _angles(self._plan.rope, positions)
            buffers.angles.cos[:count], buffers.angles.sin[:count] = cos, sin

    def _finish_rows(self, wanted: Longs, count: int) -> None:
        """Compute the rest of the last layer for the rows `wanted` of `count`; they become the first rows."""
        if len(wanted) < count:
            rows = torch.from_numpy(wanted)
            for buffer in (self._buffers.stream, self._buffers.attended):
                buffer.tensor[: len(wanted)] = buffer.tensor[rows]
        if len(wanted):
            self._last.run(len(wanted))

    def _logits_of_rows(self, rows: Longs) -> torch.Tensor:
        rows = np.ascontiguousarray(rows)
        self._head_norm[Normalize.ROW_INDEX] = rows.ctypes.data
        return self._multiply_head(self._head, self._head_product, len(rows))

    def _hidden_of_rows(self, rows: Longs) -> torch.Tensor:
        rows = np.ascontiguousarray(rows)
        self._final_norm[Normalize.ROW_INDEX] = rows.ctypes.data
        self._final.run(len(rows))
        return self._buffers.hidden.tensor[: len(rows)].clone()

    def _multiply_head(self, program: Emitter, product: np.ndarray[Any, Any], count: int) -> torch.Tensor:
        logits = torch.empty((count, self._head_columns))
        product[Linear.OUTPUT] = logits.data_ptr()
        product[Linear.OUTPUT_STRIDE] = logits.stride(0) * logits.itemsize
        program.run(count)
        return logits[:, : self.vocab_size]

    def _emit_layer(self, index: int, layer: LayerPlan, weights: DecoderWeights, shape: CacheShape) -> None:
        emit, to = self._body, self._buffers
        weights.take(layer)
        emit.normalize(to.stream, weights.norm(layer.attention_norm), to.normed)
        emit.multiply(to.normed, weights.pack_joined(layer.inputs), to.heads, Epilogue.STORE)
        emit.rotate(to.heads, weights.head_norms(layer), shape, to.angles)
        width = shape.head_dim * to.heads.tensor.itemsize
        key = to.heads.address + shape.num_heads * width
        value = key + shape.num_kv_heads * width
        placed = to.heads.address, key, value, to.heads.stride, to.attended.address
        emit.attend(self._attention.place(index, *placed, layer.options))
        if index == len(self._plan.layers) - 1:
            emit = self._last
        attended = emit.quantize(to.attended, layer.output.in_features, to.attended_int8)
        emit.multiply(attended, weights.pack([layer.output]), to.stream, Epilogue.ADD)
        emit.normalize(to.stream, weights.norm(layer.mlp_norm), to.normed)
        emit.multiply(to.normed, weights.pack(layer.up), to.middle, layer.activation)
        middle = emit.quantize(to.middle, layer.down.in_features, to.middle_int8)
        emit.multiply(middle, weights.pack([layer.down]), to.stream, Epilogue.ADD)

    def _emit_head(self, weights: DecoderWeights) -> None:
        """The head after a step's norm, the norm alone, and the head alone."""
        plan, to = self._plan, self._buffers
        weights.take(plan.norm)
        norm = weights.norm(plan.norm)
        matrix, self._embed_rows = weights.head_and_embedding(plan)
        self._head_columns = matrix.columns[0]
        self._head_norm = self._head.normalize(to.stream, norm, to.normed)
        self._head_product = self._head.multiply(to.normed, matrix, to.logits, Epilogue.STORE)
        self._final_norm = self._final.normalize(to.stream, norm, to.hidden)
        given = self._given_head.quantize(to.given, plan.head.in_features, to.normed if to.given is to.hidden else None)
        self._given_product = self._given_head.multiply(given, matrix, to.logits, Epilogue.STORE)


class _Buffers:
    """Where a step's rows lie; the `_int8` ones are None unless products take int8."""

    def __init__(self, plan: DecoderPlan, shape: CacheShape, fmt: Format, rows: int) -> None:
        layer, hidden = plan.layers[0], plan.head.in_features
        rounded = fmt == Format.INT8
        factors = {Format.INT8: torch.uint8, Format.BFLOAT16: torch.bfloat16, Format.FLOAT32: torch.float32}[fmt]
        attended, middle = layer.output.in_features, max(layer.down.in_features for layer in plan.layers)
        self.stream = Rows(rows, hidden, torch.float32)
        self.normed = Rows(rows, hidden, factors, exact=True)
        heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        wide = Rows.memory(rows, max(heads, middle), shape.dtype)
        self.heads = Rows(rows, heads, shape.dtype, memory=wide)
        self.attended = Rows(rows, attended, shape.dtype, exact=True)
        self.attended_int8 = Rows(rows, attended, torch.uint8, exact=True) if rounded else None
        self.middle = Rows(rows, middle, shape.dtype, memory=wide)
        self.middle_int8 = Rows(rows, middle, torch.uint8, exact=True) if rounded else None
        self.hidden = Rows(rows, hidden, torch.float32, exact=True)
        self.given = self.hidden if rounded else self.normed
        self.logits = Rows(0, 1, torch.float32)
        """Gives the format alone; each step has logits of its own."""
        self.angles = Rotation(rows, len(plan.rope.inverse_frequencies) if plan.rope else 0)


def _angles(rope: Rope, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T] positions to float32 cosines and sines, each [T, half the rotated dimensions]."""
    turned = positions[:, None].float() * rope.inverse_frequencies
    return turned.cos() * rope.scale, turned.sin() * rope.scale

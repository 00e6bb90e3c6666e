"""Decoding from captured graphs, on a CPU: a graph here runs its work again on what its inputs then hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from millrace.model_manager.engine.cuda.graphs import PlacedModelRunner, Replay, decodes, graph_sizes, padded
from millrace.model_manager.engine.cuda.query_tiles import cut_tiles
from millrace.model_manager.engine.cuda.step_buffer import PlacedStep, StepBuffer
from millrace.model_manager.engine.interface import StepInput
from millrace.model_manager.engine.paged_attention import AttentionOptions, CacheShape
from millrace.model_manager.engine.sampling.sampler import launch_by_torch
from millrace.model_manager.engine.torch.attention_hook import IMPLEMENTATION, register
from millrace.model_manager.engine.torch.gathering_attention import GatheringAttention
from millrace.model_manager.engine.torch.model_runner import TorchModelRunner
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.batches import deal_blocks, make_step
from tests.model_manager.engine.sampling.test_sampler import rows

CPU = torch.device("cpu")
BLOCK, NUM_BLOCKS, MAX_SEQS = 8, 40, 10


class PlacedAttention:
    """Reads a step from the buffer alone, when it attends: as kernels do that were launched, or captured, before."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._buffer = StepBuffer(CPU, max_tokens=64, max_seqs=16, max_blocks=NUM_BLOCKS)
        self._cache = torch.zeros(2, shape.num_layers, shape.num_blocks * BLOCK, shape.num_kv_heads, shape.head_dim)
        self.placed: PlacedStep | None = None
        self.stored: set[int] = set()

    def begin(self, step: StepInput) -> None:
        self.place(step)

    def place(self, step: StepInput) -> PlacedStep:
        self.placed = self._buffer.place(step, cut_tiles(step, narrow=8, wide=16))
        return self.placed

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        step = self.placed
        assert step is not None
        real = step.slots >= 0
        self.stored |= set(step.slots[real].tolist())
        cache = self._cache[:, layer]
        cache[0, step.slots[real].long()], cache[1, step.slots[real].long()] = key[real], value[real]
        output = torch.zeros_like(query)
        for sequence, first, count in step.tiles.tolist():
            if count:
                end = int(step.positions[first + count - 1]) + 1
                stride = int(step.table_stride)
                blocks = step.tables[sequence * stride : (sequence + 1) * stride]
                slots = (blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:end].long()
                keys, values = (part[slots].repeat_interleave(query.shape[1] // key.shape[1], 1) for part in cache)
                scores = torch.einsum("ihd,jhd->hij", query[first : first + count], keys) * options.scale
                seen = torch.arange(end) <= step.positions[first : first + count, None]
                weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
                output[first : first + count] = torch.einsum("hij,jhd->ihd", weights, values)
        return output


class FakeCapture:
    """Counts what is captured and replayed; a replay does the work again, into the result that was there before."""

    def __init__(self) -> None:
        self.captured: list[int] = []
        self.replayed: list[int] = []

    def __call__(self, work: Callable[[], torch.Tensor]) -> Replay:
        result = work()
        self.captured.append(len(result))

        def replay() -> torch.Tensor:
            self.replayed.append(len(result))
            assert work().data_ptr() == result.data_ptr()
            return result

        return replay


def _runners() -> tuple[PlacedModelRunner, TorchModelRunner, PlacedAttention]:
    """The same model over the attention above, and over the gathering one."""
    register()
    config: Any = random_checkpoints.qwen2()
    shape = CacheShape(config.num_hidden_layers, 4, 2, 16, NUM_BLOCKS, BLOCK, torch.float32)
    sizes: dict[str, Any] = {"device": CPU, "vocab_size": config.vocab_size, "max_model_len": 64,
                             "num_blocks": NUM_BLOCKS, "block_size": BLOCK, "eos_token_ids": []}  # fmt: skip
    placing = PlacedAttention(shape)
    placed = PlacedModelRunner(_model(config), placing, **sizes)
    return placed, TorchModelRunner(_model(config), GatheringAttention(shape, CPU), **sizes), placing


def _model(config: PreTrainedConfig) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION).eval()


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1]), (3, [1, 2, 4]), (8, [1, 2, 4, 8]), (10, [1, 2, 4, 8, 16]), (40, [1, 2, 4, 8, 16, 32, 48])],
)
def test_there_are_graphs_for_as_many_sequences_as_may_run(max_num_seqs: int, sizes: list[int]) -> None:
    assert graph_sizes(max_num_seqs) == sizes


def test_what_a_graph_computes_equals_an_ordinary_step() -> None:
    runner, plain, _ = _runners()
    capture = FakeCapture()
    runner.capture(capture, MAX_SEQS)
    assert capture.captured == [16, 8, 4, 2, 1]
    lengths = [1, 5, 8, 9, 30]
    tables = deal_blocks([length + 6 for length in lengths], BLOCK, NUM_BLOCKS)
    tokens = [list(range(3 + 7 * i, 3 + 7 * i + length + 6)) for i, length in enumerate(lengths)]
    spans = [(0, length) for length in lengths]
    for _ in range(5):
        step = make_step(spans, tables, BLOCK, tokens)
        torch.testing.assert_close(runner.execute(step).logits, plain.execute(step).logits, atol=1e-4, rtol=1e-4)
        spans = [(end, end + 1) for _, end in spans]
        spans, tables, tokens = spans[:-1] or spans, tables[: len(spans[:-1]) or 1], tokens[: len(spans[:-1]) or 1]
    assert capture.replayed == [4, 4, 2, 1]


def test_padding_is_stored_nowhere() -> None:
    runner, _, attention = _runners()
    runner.capture(FakeCapture(), MAX_SEQS)
    assert not attention.stored
    tables = deal_blocks([1, 1, 1], BLOCK, NUM_BLOCKS)
    step = make_step([(0, 1)] * 3, tables, BLOCK)
    assert runner.execute(step).logits.shape[0] == 3
    assert attention.stored == set(step.slots.tolist())


def test_only_steps_of_one_token_a_sequence_decode() -> None:
    tables = deal_blocks([20, 20], BLOCK, NUM_BLOCKS)
    decoding = make_step([(4, 5), (9, 10)], tables, BLOCK)
    assert decodes(decoding)
    assert not decodes(make_step([(4, 6), (9, 10)], tables, BLOCK))
    assert not decodes(StepInput(**vars(decoding) | {"logits_rows": decoding.logits_rows[:1]}))
    assert not decodes(StepInput(**vars(decoding) | {"hidden_rows": np.zeros(1, np.int64)}))
    assert not decodes(StepInput(**vars(decoding) | {"adapters": np.array([-1, 0], np.int32)}))


def test_a_padded_step_keeps_what_it_was_and_adds_sequences_of_nothing() -> None:
    step = make_step([(4, 5), (9, 10)], deal_blocks([5, 10], BLOCK, NUM_BLOCKS), BLOCK)
    more = padded(step, 4)
    assert more.slots.tolist() == [*step.slots.tolist(), -1, -1]
    assert more.context_lens.tolist() == [5, 10, 0, 0]
    tiles = cut_tiles(more, narrow=8, wide=16)
    assert tiles.fields.tolist() == [[1, 1, 1], [0, 0, 1], [2, 2, 0], [3, 3, 0]]
    assert tiles.num_narrow == 4


def test_a_graph_finds_everything_where_it_was_captured() -> None:
    """A captured kernel reads the addresses of its capture, whatever step is replayed."""
    buffer = StepBuffer(CPU, max_tokens=64, max_seqs=16, max_blocks=NUM_BLOCKS)
    plain = make_step([(4, 5), (9, 10), (0, 1)], deal_blocks([5, 10, 1], BLOCK, NUM_BLOCKS), BLOCK)
    ahead = dataclasses.replace(plain, sampled=torch.tensor([7, 8, 9]), sources=np.array([2, -1, 0]))
    places = [
        [tensor.data_ptr() for tensor in vars(placed).values() if isinstance(tensor, torch.Tensor) and len(tensor)]
        for step in (make_step([(0, 1)], np.zeros((1, 1), np.int32), BLOCK), plain, ahead)
        for placed in [buffer.place(padded(step, 4), cut_tiles(padded(step, 4), narrow=8, wide=16))]
    ]
    assert places[0] == places[1] == places[2]
    assert padded(ahead, 4).sources.tolist() == [2, -1, 0, -1]


def test_a_step_larger_than_every_graph_runs_without() -> None:
    runner, plain, _ = _runners()
    capture = FakeCapture()
    runner.capture(capture, 2)
    step = make_step([(0, 1)] * 3, deal_blocks([1, 1, 1], BLOCK, NUM_BLOCKS), BLOCK)
    torch.testing.assert_close(runner.execute(step).logits, plain.execute(step).logits)
    assert not capture.replayed


class BlindAttention(PlacedAttention):
    """Launches what it would, and looks at nothing."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        del layer, key, value, options
        return torch.zeros_like(query)


@pytest.mark.parametrize("spans", [[(4, 5), (9, 10)], [(4, 5), (0, 10)]], ids=["decoding", "mixed"])
def test_launching_a_step_and_sampling_from_it_waits_for_nothing(
    spans: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these calls, on a GPU, waits until all launched work is done."""
    monkeypatch.setattr(f"{__name__}.PlacedAttention", BlindAttention)
    runner, _, _ = _runners()
    runner.execute(make_step(spans, deal_blocks([10, 10], BLOCK, NUM_BLOCKS), BLOCK))
    waits: list[str] = []
    for name in ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, _noting(name, getattr(torch.Tensor, name), waits))
    output = runner.execute(make_step(spans, deal_blocks([10, 10], BLOCK, NUM_BLOCKS), BLOCK))
    assert waits == []
    for params in ({"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9, "logprobs": 2, "logit_bias": {"3": 1.0}}):
        launched = launch_by_torch(output.logits, rows(2, **params))
        assert waits == []
        assert len(launched.get().token_ids) == 2


def _noting(name: str, method: Callable[..., Any], waits: list[str]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        waits.append(name)
        return method(*arguments)

    return noted

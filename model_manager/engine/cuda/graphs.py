"""Steps in which every sequence computes one token, replayed from graphs captured for a few batch sizes.

A decoding step launches a thousand small kernels, which takes the host longer than it takes the GPU to run them; a
graph is one launch. A step is padded to the next size that was captured. Which sizes there are and what padding is are
decided here; what capturing means is `Capture`'s business, so that tests need no GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from ..interface import StepInput, StepOutput
from ..paged_attention import PagedAttention
from ..torch.model_runner import TorchModelRunner, with_sampled
from .step_buffer import PlacedStep

Replay = Callable[[], torch.Tensor]
"""Runs what was captured on what lies in its inputs now; its result is overwritten by the next replay."""


class Capture(Protocol):
    """Records the work of a function whose inputs and results stay where they are."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> Replay:
        """Run `work` and record what it launches."""


class PlacingAttention(PagedAttention, Protocol):
    """Paged attention that reads a step from where the step buffer puts it."""

    def place(self, step: StepInput) -> PlacedStep:
        """Copy a step to the device; every layer of it is attended from there."""


class CudaCapture:
    """Capture by torch.cuda.graph; all graphs share the memory of the largest, which is to be captured first."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()

    def __call__(self, work: Callable[[], torch.Tensor]) -> Replay:
        self._side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._side):
                work()  # what is compiled, tuned or allocated at first use must be so before
                with _refusing_waits():
                    work()
        finally:
            torch.cuda.current_stream().wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side):
            result = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """Within, work that waits for the device raises RuntimeError: in a capture that would spoil the stream too."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class PlacedModelRunner(TorchModelRunner):
    """A ModelRunner whose steps go to the device in one transfer; once captured, decoding ones run as one launch."""

    def __init__(self, model: Any, attention: PlacingAttention, **sizes: Any) -> None:
        """`sizes` as of TorchModelRunner."""
        super().__init__(model, attention, **sizes)
        self._placing = attention
        self._graphs: dict[int, Replay] = {}

    @torch.inference_mode()
    def capture(self, capture: Capture, max_num_seqs: int) -> None:
        """Capture a graph for each batch size up to `max_num_seqs`; the cache is not written."""
        sizes = graph_sizes(max_num_seqs)
        logits = torch.empty(
            sizes[-1], self.vocab_size, dtype=torch.float32, device=self._device
        )  # shared by all graphs
        for size in reversed(sizes):
            placed = self._placing.place(padded(_NO_STEP, size))
            self._graphs[size] = capture(functools.partial(self._decode, placed, logits[:size]))
        self.has_graphs = True

    def release(self) -> None:
        """Drop all graphs."""
        self._graphs.clear()

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepOutput:
        """Compute the batch, writing keys and values to `slots`; logits hold until the next step."""
        count = len(step.context_lens)
        size = next((size for size in sorted(self._graphs) if size >= count), None) if decodes(step) else None
        if size is not None:
            self._place_step(padded(step, size))
            return StepOutput(logits=self._graphs[size]()[:count])
        self._begin(step)
        placed = self._place_step(step)
        hidden_rows = placed.hidden_rows.long() if len(step.hidden_rows) else None
        rows = (placed.token_ids.long(), placed.positions.long(), placed.logits_rows.long(), hidden_rows)
        return self._forward(*rows)

    def _place_step(self, step: StepInput) -> PlacedStep:
        """Copy the step to the device; a captured graph finds each token's id where it lay when it was captured."""
        placed = self._placing.place(step)
        if step.sampled is not None:
            placed.token_ids.copy_(with_sampled(placed.token_ids, placed.sources, step.sampled))
        return placed

    def _decode(self, placed: PlacedStep, logits: torch.Tensor) -> torch.Tensor:
        """`logits`, float32 of every row."""
        self._forward(placed.token_ids.long(), placed.positions.long(), None, None, logits)
        return logits


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes of graphs: 1, 2, 4, 8 and multiples of 16 up to `max_num_seqs`; little is padded, few are kept."""
    sizes = [1, 2, 4, 8, *range(16, max_num_seqs + 16, 16)]
    enough = next(index for index, size in enumerate(sizes) if size >= max_num_seqs)
    return sizes[: enough + 1]


def decodes(step: StepInput) -> bool:
    """Whether every sequence computes one token and wants its logits, and nothing else is asked for."""
    count = len(step.context_lens)
    return (
        len(step.token_ids) == count == len(step.logits_rows) and not len(step.hidden_rows) and not len(step.adapters)
    )


def padded(step: StepInput, size: int) -> StepInput:
    """A decoding step padded to `size` rows by sequences without context, whose tokens are stored nowhere."""
    more = size - len(step.token_ids)
    assert more >= 0, "a step larger than the graph"
    sources = step.sources if len(step.sources) else np.full(len(step.token_ids), -1, np.int64)
    return StepInput(
        token_ids=np.pad(step.token_ids, (0, more)),
        positions=np.pad(step.positions, (0, more)),
        slots=np.pad(step.slots, (0, more), constant_values=-1),
        query_starts=np.arange(size + 1, dtype=np.int32),
        context_lens=np.pad(step.context_lens, (0, more)),
        block_tables=np.pad(step.block_tables, ((0, more), (0, 0))),
        logits_rows=np.arange(size, dtype=np.int64),
        sampled=step.sampled,
        sources=np.pad(
            sources, (0, more), constant_values=-1
        ),  # always present: the arrays after it must lie where they were captured
    )


_NO_STEP = StepInput(
    token_ids=np.zeros(0, np.int64),
    positions=np.zeros(0, np.int64),
    slots=np.zeros(0, np.int64),
    query_starts=np.zeros(1, np.int32),
    context_lens=np.zeros(0, np.int32),
    block_tables=np.zeros((0, 1), np.int32),
    logits_rows=np.zeros(0, np.int64),
)

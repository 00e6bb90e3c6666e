"""The two seams of the inference process, as types: the loop sees an `Engine`, an engine sees a `ModelRunner`.

`Engine` is what another back end implements; `ModelRunner` is what a device implements. Knows no torch, so that the
torch-free engine of the tests stands at the same seam.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..wire.errors import InvalidRequest
from ..wire.logprobs import Logprobs
from ..wire.request import Adapter, Failure, NewText, Output, Request
from ..wire.status import EngineStats, ModelInfo

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@dataclass
class StepResult:
    """Results of one step."""

    outputs: list[Output] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    new_token_ids: dict[str, list[int]] = field(default_factory=dict)
    """Tokens sampled in this step, by request; only of requests that go on."""
    new_logprobs: dict[str, Logprobs] = field(default_factory=dict)
    """Log-probabilities of the new tokens, for requests that want them."""
    new_texts: dict[str, NewText] = field(default_factory=dict)
    """Text of the new tokens, from an engine that takes text."""
    cache_bytes: int | None = None
    """The new size of the KV cache, in the step that has changed it."""

    def note_progress(self, request_id: str, token_id: int, logprobs: Logprobs | None) -> None:
        """Note one more token of a request that goes on."""
        self.new_token_ids.setdefault(request_id, []).append(token_id)
        if logprobs is not None:
            before = self.new_logprobs.get(request_id)
            self.new_logprobs[request_id] = logprobs if before is None else Logprobs.join([before, logprobs])

    def forget_progress(self, request_id: str) -> None:
        """Drop a request's progress: it has ended, and its output has all tokens."""
        self.new_token_ids.pop(request_id, None)
        self.new_logprobs.pop(request_id, None)
        self.new_texts.pop(request_id, None)

    def add(self, answer: Output | Failure) -> None:
        """Add the answer of a request that has ended: its output, or its failure."""
        if isinstance(answer, Output):
            self.outputs.append(answer)
        else:
            self.failures.append(answer)


class LoadInterrupted(Exception):
    """Something ended or stopped a load that another process may well complete: the manager starts that process."""


class Engine(Protocol):
    """Continuous batching: `add` queues a request; each `step` runs one batch and returns the answers that it ended."""

    info: ModelInfo

    def add(self, request: Request) -> None:
        """Queue a request; raises RequestError if it can never run."""

    def abort(self, request_id: str) -> None:
        """End a request; its Output (finish reason abort) comes with the next step. Unknown ids are ignored."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def step(self) -> StepResult:
        """Run one batch."""

    def stats(self) -> EngineStats:
        """How many sequences run and wait, and the counters, at this moment."""


@runtime_checkable
class ResizableEngine(Engine, Protocol):
    """An Engine whose `info` tells the size of its KV cache (`cache_bytes`), since that size can be changed."""

    def resize_cache(self, size: int) -> None:
        """Let the KV cache take at most `size` bytes, as soon as no sequence needs more. It keeps what one sequence of
        full length needs, and never gets larger than it was loaded. The step that is done with it says the new size.
        """


@dataclass(frozen=True)
class StepInput:
    """One packed batch: T tokens of S sequences, prefill and decode mixed, sequence after sequence.

    Within a sequence the tokens are consecutive positions, ending at `context_lens - 1`.
    """

    token_ids: Longs
    """[T]"""
    positions: Longs
    """[T] position of each token in its sequence."""
    slots: Longs
    """[T] where each token's key and value go: block id x block size + offset."""
    query_starts: Ints
    """[S + 1] sequence s owns rows query_starts[s] .. query_starts[s + 1] - 1."""
    context_lens: Ints
    """[S] tokens of each sequence that have keys and values after this step."""
    block_tables: Ints
    """[S, most blocks of any] block ids; rows are padded with 0, never read past context_lens."""
    logits_rows: Longs
    """[L] rows of T whose next-token logits are wanted (the last row of each sequence that samples)."""
    hidden_rows: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    """[H] rows of T whose final hidden states are wanted."""
    adapters: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """[S] slot of each sequence's adapter, -1 for none; empty if none has one."""
    sampled: Any = None
    """Tokens of the step before, which the host does not know yet: a tensor [N] on the runner's device."""
    sources: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    """[T] index into `sampled` of each token, -1 where `token_ids` has the token; empty if `token_ids` has them all."""

    @classmethod
    def of_first_tokens(cls, count: int) -> Self:
        """One sequence's first `count` tokens, all 0, in block 0, with the logits of the last."""
        return cls(
            token_ids=np.zeros(count, np.int64),
            positions=np.arange(count, dtype=np.int64),
            slots=np.arange(count, dtype=np.int64),
            query_starts=np.array([0, count], np.int32),
            context_lens=np.array([count], np.int32),
            block_tables=np.zeros((1, 1), np.int32),
            logits_rows=np.array([count - 1], np.int64),
        )


@dataclass(frozen=True)
class StepOutput:
    """What a step computed, as tensors on the runner's device."""

    logits: Any
    """float32 [L, vocab_size] of `logits_rows`."""
    hidden: Any = None
    """[H, hidden_size] of `hidden_rows` in the model's format, as the output head takes them; None if H is 0."""


class AdapterNotRead(InvalidRequest):
    """The adapter's files cannot be read, or are others: the next request may name a folder that has them."""


class AdapterSlots(Protocol):
    """Where a model takes LoRA adapters: `num_slots` at once, each in a slot of its own."""

    num_slots: int

    def load(self, slot: int, adapter: Adapter) -> None:
        """Load an adapter into a slot; an adapter that is there is replaced.

        Raises InvalidRequest with the reason, and AdapterNotRead where it is not the adapter's contents; the slot does
        not change then.
        """


class ModelRunner(Protocol):
    """A loaded model and its paged KV cache on one device."""

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    eos_token_ids: list[int]
    has_graphs: bool
    """Whether a step of decoding alone is one launch, so that prompts are better admitted several at a time."""
    runs_ahead: bool
    """True if `execute` only launches work, in order, and reads tokens from `sampled`: then a step can be launched
    before the tokens of the last one are known.
    """
    bytes_per_block: int
    """Bytes of a block of the KV cache; 0 if the cache cannot give memory back."""

    def execute(self, step: StepInput) -> StepOutput:
        """Compute the batch, writing keys and values to `slots`."""

    def logits(self, hidden: Any) -> Any:
        """The output head alone: float32 logits [N, vocab_size] of final hidden states [N, hidden_size] (torch)."""

    def give_back(self, first_block: int) -> None:
        """Give the memory of this block and all after it back to the system; they take memory again once written."""

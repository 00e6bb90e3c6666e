"""A ModelRunner whose logits are a function of the token history, as it reads that back from its paged cache.

It stores each token and its position in the slot it is told, and reads a sequence's past through its block table: a
wrong slot, table, length or position, or a block reused too early, shows as another token or as a failed assertion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import msgspec
import numpy as np
import torch

from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.interface import StepInput, StepOutput
from millrace.model_manager.engine.sampling.sampler import Sampler
from millrace.model_manager.engine.scheduling.block_manager import BlockManager
from millrace.model_manager.engine.scheduling.sequence import sampling_seed
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.wire.config import ModelConfig, SpeculationMethod
from millrace.model_manager.wire.request import Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import ModelInfo
from tests.model_manager.engine.sampling_cases import Case, rows_of
from tests.model_manager.model_infos import model_info

VOCAB_SIZE = 24
EOS = 0
BYTES_PER_BLOCK = 1000


class HistoryRunner:
    """`broken(tokens)` names histories for which the logits are not finite; `steps` keeps every input, with the tokens
    that only the device knew when it came.
    """

    vocab_size = VOCAB_SIZE
    eos_token_ids = [EOS]  # noqa: RUF012

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 8,
        max_model_len: int = 256,
        broken: Callable[[list[int]], bool] = lambda _: False,
        *,
        runs_ahead: bool = False,
    ) -> None:
        self.has_graphs = False
        self.runs_ahead = runs_ahead
        self.bytes_per_block = BYTES_PER_BLOCK
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.steps: list[StepInput] = []
        self._broken = broken
        self._tokens = np.full(num_blocks * block_size, -1)
        self._positions = np.full(num_blocks * block_size, -1)
        self._history_of: dict[bytes, list[int]] = {}

    def execute(self, step: StepInput) -> StepOutput:
        if step.sampled is not None:
            step = replace(step, token_ids=np.where(step.sources < 0, step.token_ids, step.sampled[step.sources]))
        self.steps.append(step)
        assert len(set(step.slots.tolist())) == len(step.slots)
        self._tokens[step.slots] = step.token_ids
        self._positions[step.slots] = step.positions
        sequence_of = np.searchsorted(step.query_starts, np.arange(len(step.token_ids)), side="right") - 1
        histories = [self._history(step, index) for index in range(len(step.context_lens))]

        def history(row: int) -> list[int]:
            return histories[sequence_of[row]][: step.positions[row] + 1]

        logits = [self._logits(history(row)) for row in step.logits_rows.tolist()]
        hidden = [self._hidden(history(row)) for row in step.hidden_rows.tolist()]
        return StepOutput(
            logits=torch.stack(logits) if logits else torch.zeros(0, self.vocab_size),
            hidden=torch.stack(hidden) if hidden else None,
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of the histories that gave these hidden states."""
        return torch.stack([self._logits(self._history_of[row.numpy().tobytes()]) for row in hidden])

    def give_back(self, first_block: int) -> None:
        self._tokens[first_block * self.block_size :] = self._positions[first_block * self.block_size :] = -1

    def _history(self, step: StepInput, index: int) -> list[int]:
        length = int(step.context_lens[index])
        assert step.positions[step.query_starts[index + 1] - 1] == length - 1
        positions = np.arange(length)
        slots = step.block_tables[index, positions // self.block_size] * self.block_size + positions % self.block_size
        assert (self._positions[slots] == positions).all()
        history: list[int] = self._tokens[slots].tolist()
        return history

    def _hidden(self, history: list[int]) -> torch.Tensor:
        hidden = torch.full((4,), torch.nan) if self._broken(history) else hidden_after(history)
        self._history_of[hidden.numpy().tobytes()] = history
        return hidden

    def _logits(self, history: list[int]) -> torch.Tensor:
        return torch.full((VOCAB_SIZE,), torch.nan) if self._broken(history) else logits_after(history)


def logits_after(history: list[int]) -> torch.Tensor:
    """[V] normal numbers that any change of the history changes."""
    return torch.from_numpy(
        np.random.default_rng([len(history), *history]).normal(size=VOCAB_SIZE).astype(np.float32) * 3
    )


def hidden_after(history: list[int]) -> torch.Tensor:
    """[4] likewise, as final hidden states."""
    return torch.from_numpy(np.random.default_rng([0, len(history), *history]).normal(size=4).astype(np.float32))


def reference_tokens(request: Request, max_len: int) -> list[int]:
    """What a request alone generates, without cache, blocks or batch; for requests without stop strings.

    Computed once for the same request: a random test asks again and again.
    """
    asked = (tuple(request.prompt_token_ids), msgspec.json.encode(request.params), sampling_seed(request), max_len)
    if asked not in _references:
        _references[asked] = _generated(request, max_len)
    return list(_references[asked])


_references: dict[tuple[tuple[int, ...], bytes, int, int], list[int]] = {}


def _generated(request: Request, max_len: int) -> list[int]:
    tokens = list(request.prompt_token_ids)
    output: list[int] = []
    most = min(request.params.max_tokens, max_len - len(tokens))
    sampler = Sampler()
    while len(output) < most:
        rows = rows_of(
            [Case(request.params, sampling_seed(request), request.prompt_token_ids, output)],
            eos=[EOS],
            vocab_size=VOCAB_SIZE,
        )
        sampled = sampler.sample(logits_after(tokens)[None], rows)
        output = output + sampled.token_ids
        tokens += sampled.token_ids
        if output[-1] in request.params.stop_token_ids or (output[-1] == EOS and not request.params.ignore_eos):
            break
    return output


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class EngineUnderTest:
    """An LLMEngine on a HistoryRunner; checks every invariant after every step."""

    def __init__(
        self,
        runner: HistoryRunner | None = None,
        *,
        stop_rules: StopRules | None = None,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        prefix_caching: bool = True,
        speculation: SpeculationMethod = "off",
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.runner = runner or HistoryRunner()
        self.clock = Clock()
        config = ModelConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            prefix_caching=prefix_caching,
            speculation=speculation,
        )
        rules = stop_rules or StopRules(frozenset(self.runner.eos_token_ids), None)
        self.engine = LLMEngine(self.runner, self._info(config), config, rules, self.clock, grammars=grammars)
        self.outputs: dict[str, Output] = {}
        self.failures: dict[str, str] = {}
        self.progress: dict[str, list[int]] = {}

    def _info(self, config: ModelConfig) -> ModelInfo:
        return model_info(
            vocab_size=self.runner.vocab_size,
            max_model_len=self.runner.max_model_len,
            max_num_seqs=config.max_num_seqs,
            num_blocks=self.runner.num_blocks,
            block_size=self.runner.block_size,
            eos_token_ids=self.runner.eos_token_ids,
        )

    @cached_property
    def blocks(self) -> BlockManager:
        return self.engine._blocks

    def step(self) -> None:
        result = self.engine.step()
        self.engine.check_integrity()
        for output in result.outputs:
            assert output.request_id not in self.outputs.keys() | self.failures.keys()
            self.outputs[output.request_id] = output
        for failure in result.failures:
            assert failure.request_id not in self.outputs.keys() | self.failures.keys()
            self.failures[failure.request_id] = failure.error.kind
        for request_id, tokens in result.new_token_ids.items():
            self.progress.setdefault(request_id, []).extend(tokens)

    def finish(self, most_steps: int = 5000) -> dict[str, Output]:
        """Step until nothing is left; every block is free then."""
        for _ in range(most_steps):
            if not self.engine.has_work():
                assert self.blocks.num_free == self.runner.num_blocks
                return self.outputs
            self.step()
        raise AssertionError("the engine makes no progress")

    def run(self, *requests: Request) -> list[Output]:
        """Add the requests, finish, and return their outputs."""
        for request in requests:
            self.engine.add(request)
        outputs = self.finish()
        return [outputs[request.request_id] for request in requests]


def request(request_id: str = "a", prompt: list[int] | None = None, **params: object) -> Request:
    """A request of three tokens, if it has no other prompt."""
    return Request(request_id, prompt or [3, 1, 4], SamplingParams.parse({"ignore_eos": True, **params}))

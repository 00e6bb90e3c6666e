"""The cost of a long queue: tokens a second of the engine without a model, with 100 and with 10,000 requests waiting.

python -m benchmarks.queue --waiting 100,10000 --results benchmarks/results/queue.json

The runner computes nothing, so all time is the engine's own: scheduling, packing, sampling. Rounds of the queues
alternate, and each one's fastest counts, in processor time, which other work on the machine disturbs less. Memory is
measured in a process for each length alone: before its queue is filled, when it is full, and after as many steps as all
rounds have, with the queue kept full; what is more than the queue itself needs grows. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch

from benchmarks.command_line import command_line
from benchmarks.results import conclude
from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.interface import StepInput, StepOutput
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import ModelInfo

_VOCAB = 64


class IdleRunner:
    """A ModelRunner (interface.py) whose logits are always the same."""

    vocab_size = _VOCAB
    max_model_len = 2048
    num_blocks = 8192
    block_size = 16
    eos_token_ids: list[int] = []  # noqa: RUF012
    has_graphs = False
    runs_ahead = False
    bytes_per_block = 0

    def __init__(self) -> None:
        self._logits = torch.zeros(512, _VOCAB)

    def execute(self, step: StepInput) -> StepOutput:
        return StepOutput(logits=self._logits[: len(step.logits_rows)], hidden=None)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits[: len(hidden)]

    def give_back(self, first_block: int) -> None:
        raise AssertionError(f"it has no memory of block {first_block}")


class Queue:
    """An engine with so many requests waiting at all times."""

    def __init__(self, waiting: int, shared: int) -> None:
        self._waiting = waiting
        self._requests = requests(shared)
        runner = IdleRunner()
        info = ModelInfo("idle", "", "", "", "cpu", _VOCAB, runner.max_model_len, 64, [], 0.0, runner.num_blocks, 16)
        config = ModelConfig()
        self._engine = LLMEngine(runner, info, config, StopRules(frozenset(), None))
        self._refill()

    def run(self, steps: int) -> float:
        """Tokens generated a second of this process's own time, the adding of requests not counted."""
        tokens, seconds = 0, 0.0
        for _ in range(steps):
            started = time.process_time()
            result = self._engine.step()
            seconds += time.process_time() - started
            tokens += len(result.new_token_ids) + len(result.outputs)
            self._refill()
        return tokens / seconds

    def _refill(self) -> None:
        for _ in range(self._waiting - self._engine.stats().waiting):
            self._engine.add(next(self._requests))


def requests(shared: int) -> Iterator[Request]:
    """Prompts of 16 to 150 tokens of their own after `shared` common ones, outputs of 4 to 100 tokens."""
    rnd = random.Random(1)
    for number in itertools.count():
        own = [rnd.randrange(_VOCAB) for _ in range(rnd.randint(16, 150))]
        yield Request(str(number), [7] * shared + own, SamplingParams(max_tokens=rnd.randint(4, 100)))


def main() -> None:
    """Measure; the last line is JSON."""
    parser = command_line("queue", __doc__)
    parser.add_argument("--waiting", default="100,10000", help="lengths of the queue")
    parser.add_argument("--shared", type=int, default=0, help="tokens that all prompts begin with")
    parser.add_argument("--rounds", type=int, default=5, help="of each queue")
    parser.add_argument("--steps", type=int, default=300, help="of a round")
    parser.add_argument("--results", type=Path, help="file to keep the last line in")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are tiny, and threads that wait for each other count as time
    lengths = [int(length) for length in options.waiting.split(",")]
    queues = {waiting: Queue(waiting, options.shared) for waiting in lengths}
    rates: dict[int, list[float]] = {waiting: [] for waiting in queues}
    for _ in range(options.rounds):
        for waiting, queue in queues.items():
            rates[waiting].append(queue.run(options.steps))
            print(f"{waiting:>7,} waiting: {rates[waiting][-1]:>9,.0f} tokens/s", flush=True)
    figures = {
        "tokens_per_s": {waiting: round(max(measured)) for waiting, measured in rates.items()},
        "rss_mb": {waiting: _in_a_process(waiting, options) for waiting in lengths},
        "shared": options.shared,
        "steps": options.steps * options.rounds,
    }
    conclude(figures, options.results)


def _in_a_process(waiting: int, options: argparse.Namespace) -> dict[str, float]:
    """`memory` of the queue in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawning) as pool:
        found = pool.submit(memory, waiting, options.shared, options.steps * options.rounds).result()
    print(f"{waiting:>7,} waiting: {', '.join(f'{when} {mb:,.1f} MB' for when, mb in found.items())}", flush=True)
    return found


def memory(waiting: int, shared: int, steps: int) -> dict[str, float]:
    """Resident MB of this process: `before` the queue, `filled`, and `after` so many steps."""
    torch.set_num_threads(1)
    Queue(1, shared).run(100)  # what is loaded or compiled at first use
    found = {"before": _rss_mb()}
    queue = Queue(waiting, shared)
    found["filled"] = _rss_mb()
    queue.run(steps)
    return found | {"after": _rss_mb()}


def _rss_mb() -> float:
    return round(float(psutil.Process().memory_info().rss) / 2**20, 1)


if __name__ == "__main__":
    main()

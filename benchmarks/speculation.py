"""Throughput with 0, 1, 2, 4 or 8 guessed tokens, in batches of 1, 8 and 64. The last line is JSON.

    python -m benchmarks.speculation --prompts examples/prompts/orders.jsonl
    python -m benchmarks.speculation --times_of DIR/opt-125m

Which guesses are right is found by running `--model` on `--prompts`; what that costs is reckoned: each step that was
run counts as long as a step of so many rows takes in a model of the shape of `--times_of`, the shortest of several.
So a figure does not depend on what else the machine did during one run. `adaptive` is the engine's own policy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.command_line import command_line
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.interface import ModelRunner, StepInput, StepOutput
from millrace.model_manager.engine.loading.model_loader import LoadedModel, load_model
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.engine.speculation.drafts import Policy
from millrace.model_manager.store.resolving import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.sampling import SamplingParams

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
_CONTEXT = 64


class CountingRunner:
    """A runner that notes how many rows each step has."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.rows: Counter[int] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, step: StepInput) -> StepOutput:
        self.rows[len(step.token_ids)] += 1
        return self._runner.execute(step)


def main() -> None:
    """Measure, print a table, and the same as JSON."""
    arguments = _arguments()
    times = step_times(arguments.times_of, arguments.dtype, arguments.threads, arguments.repeats)
    print("rows  ms a step\n" + "\n".join(f"{rows:4d}  {seconds * 1e3:.2f}" for rows, seconds in times.items()))
    config = ModelConfig.parse({"model": arguments.model, "num_threads": arguments.threads, "kv_cache_gib": 0.25})
    model = load_model(config, resolve(arguments.model))
    asked = requests(arguments.prompts, Tokenizer.load(resolve(arguments.model)), arguments.num_prompts)
    found = []
    for batch, drafts in itertools.product(arguments.batches, [*arguments.drafts, None]):
        each = measured(model, asked, times, batch, drafts)
        found.append(each)
        each["speedup"] = round(each["tokens_per_s"] / next(f["tokens_per_s"] for f in found if f["batch"] == batch), 3)
        print("batch {batch:3d}  drafts {drafts!s:8}  accepted {accepted} of {drafted}  x{speedup}".format(**each))
    print(json.dumps({"benchmark": "speculation", "times_ms": {r: s * 1e3 for r, s in times.items()}, "runs": found}))


def measured(
    model: LoadedModel, asked: list[Request], times: dict[int, float], batch: int, drafts: int | None
) -> dict[str, Any]:
    """One batch size and number of drafts (None is the engine's own policy)."""
    speculation = "off" if drafts == 0 else "prompt_lookup"
    config = ModelConfig.parse({"max_num_seqs": batch, "speculation": speculation})
    runner = CountingRunner(model.runner)
    rules = StopRules(frozenset(model.info.eos_token_ids), None)
    policy = Policy(drafts, most_rows=math.inf, least_acceptance=0.0) if drafts else None
    engine = LLMEngine(runner, model.info, config, rules, policy=policy)
    tokens = 0
    for request in asked:
        engine.add(request)
    while engine.has_work():
        tokens += sum(len(output.token_ids) for output in engine.step().outputs)
    seconds = sum(count * _seconds(times, rows) for rows, count in runner.rows.items())
    stats = engine.stats()
    return {
        "batch": batch,
        "drafts": "adaptive" if drafts is None else drafts,
        "tokens": tokens,
        "steps": stats.steps,
        "drafted": stats.drafted_tokens,
        "accepted": stats.accepted_tokens,
        "tokens_per_s": round(tokens / seconds, 2),
    }


def requests(path: Path, tokenizer: Tokenizer, most: int) -> list[Request]:
    """The file's prompts, greedy."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:most]]
    chats = [row.get("messages") or [{"role": "user", "content": row["prompt"]}] for row in rows]
    return [
        Request(
            str(n),
            tokenizer.encode(tokenizer.chat_text(chat), add_special_tokens=False),
            SamplingParams(max_tokens=row["max_tokens"]),
        )
        for n, (row, chat) in enumerate(zip(rows, chats, strict=True))
    ]


def step_times(model: str, dtype: str, threads: int, repeats: int) -> dict[int, float]:
    """Seconds of a step of so many rows, each a sequence's, the shortest of `repeats`."""
    folder = resolve(model)
    config = ModelConfig.parse({"model": str(folder), "dtype": dtype, "num_threads": threads, "kv_cache_gib": 2.0})
    runner = load_model(config, folder).runner
    steps = {rows: _decoding(runner, rows) for rows in _ROWS}
    best = dict.fromkeys(_ROWS, float("inf"))
    for _, rows in itertools.product(range(repeats), _ROWS):
        started = time.perf_counter()
        runner.execute(steps[rows])
        best[rows] = min(best[rows], time.perf_counter() - started)
    return best


def _decoding(runner: ModelRunner, rows: int) -> StepInput:
    """A step in which `rows` sequences of _CONTEXT tokens have one more each; their blocks may be the same."""
    blocks = -(-(_CONTEXT + 1) // runner.block_size)
    tables = np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks) % runner.num_blocks
    offset = _CONTEXT % runner.block_size
    return StepInput(
        token_ids=np.full(rows, 5),
        positions=np.full(rows, _CONTEXT),
        slots=tables[:, -1].astype(np.int64) * runner.block_size + offset,
        query_starts=np.arange(rows + 1, dtype=np.int32),
        context_lens=np.full(rows, _CONTEXT + 1, np.int32),
        block_tables=tables,
        logits_rows=np.arange(rows),
    )


def _seconds(times: dict[int, float], rows: int) -> float:
    """Between two measured numbers of rows, in proportion."""
    known: npt.NDArray[np.int64] = np.array(list(times))
    return float(np.interp(rows, known, np.array(list(times.values()))))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = command_line("speculation", __doc__)
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="whose outputs are guessed")
    parser.add_argument("--times_of", default=EMBEDDED_MODEL, help="the model whose steps are timed")
    parser.add_argument("--dtype", default="auto", help="of both models")
    parser.add_argument("--threads", type=int, default=1, help="that a step is timed with")
    parser.add_argument("--prompts", type=Path, default=Path("examples/prompts/orders.jsonl"), help="JSONL")
    parser.add_argument("--num_prompts", type=int, default=64, help="of the file")
    parser.add_argument("--batches", type=_numbers, default=[1, 8, 64], help="sequences in a step")
    parser.add_argument(
        "--drafts", type=_numbers, default=[0, 1, 2, 4, 8], help="the first is what others are compared to"
    )
    parser.add_argument("--repeats", type=int, default=7, help="of each step; the fastest counts")
    return parser.parse_args()


if __name__ == "__main__":
    main()

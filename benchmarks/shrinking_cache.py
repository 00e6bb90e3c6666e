"""Two models with work: the KV cache of the first shrinks so that both are in memory, or they take turns.

    python -m benchmarks.shrinking_cache --rows 300 --rounds 3

Each model has the embedded model's shape and random weights of its own, in float32. There is memory for both with the
smallest KV caches and `--spare_mib`; the first takes more. When a tenth of its rows are answered, a client opens the
second model, and sends as many rows. In the way `turns` each model has a KV cache of a size that its settings ask for
(`kv_cache_gib`), as large as the first gets otherwise: such a cache cannot shrink. Both ways run in each round; which
one is first alternates. Every row must have an answer. The last line is JSON: rows a second from the opening on,
seconds until the second model is ready, the memory of the first engine before and after, loads, and the ratio of the
rates in each round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.command_line import command_line
from benchmarks.many_models import write_models
from benchmarks.results import conclude
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import read_status, stop_models
from millrace.model_manager.store.memory import SHARE_OF_MACHINE, MemoryNeed, memory_need
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.sampling import SamplingParams

WAYS = ("turns", "shrinks")
_LOOK = 0.05
_PATIENCE = 1800.0
_MIB = 2**20


@dataclass(frozen=True)
class Run:
    """Both models' rows, in one way."""

    way: str
    rows_per_s: float
    opened_after_s: float
    first_rss_mib: tuple[int, int]
    """Memory of the first engine as the second model is opened, and when that is ready; 0 if the engine is gone."""
    loads: list[int]


def first_cache(need: MemoryNeed, memory: int) -> int:
    """Bytes of KV cache that the first model gets of the memory."""
    return min(need.most_cache, int((memory - need.fixed) * SHARE_OF_MACHINE))


def run(way: str, models: list[ModelConfig], spare: int, rows: int, prompt: int, tokens: int) -> Run:
    """From no engine to the last answer. `spare`: bytes of memory beside both models with the smallest KV caches."""
    need = memory_need(models[0], models[0].model)
    memory = 2 * need.least + spare
    if way == "turns":
        models = [msgspec.structs.replace(each, kv_cache_gib=first_cache(need, memory) / 2**30) for each in models]
    settings = ManagerConfig(memory_gib=memory / 2**30, linger=0.1)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)

    def submit(client: EngineClient) -> list[Future[Output]]:
        prompts = ([1 + number % 7, 1 + number // 7] * (prompt // 2) for number in range(rows))
        return [client.submit(ids, params, request_id=f"r{number}") for number, ids in enumerate(prompts)]

    with EngineClient.open(models[0], manager=settings, job="first", chat=False) as one:
        of_first = submit(one)
        while sum(future.done() for future in of_first) < rows / 10:
            time.sleep(_LOOK)
        pid = _status().models[0].pids[0]
        before, answered, started = _rss(pid), sum(future.done() for future in of_first), time.monotonic()
        with EngineClient.open(models[1], manager=settings, job="second", chat=False) as other:
            opened, after = time.monotonic() - started, _rss(pid)
            futures = [*of_first, *submit(other)]
            wait_for(futures, _PATIENCE)
            seconds = time.monotonic() - started
            assert all(len(future.result(0).token_ids) == tokens for future in futures)
            loads = [model.loads for model in _status().models]
    _end_manager()
    rate = (2 * rows - answered) / seconds
    return Run(way, round(rate, 1), round(opened, 2), (before // _MIB, after // _MIB), loads)


def _end_manager() -> None:
    """The next one has settings of its own."""
    stop_models()
    while read_status() is not None:
        time.sleep(_LOOK)


def _status() -> Status:
    status = read_status()
    assert status is not None
    return status


def _rss(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _arguments() -> argparse.Namespace:
    parser = command_line("shrinking_cache", __doc__)
    parser.add_argument("--rows", type=int, default=300, help="of each model")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each answer")
    parser.add_argument("--max_num_seqs", type=int, default=256)
    parser.add_argument("--spare_mib", type=int, default=64, help="beside both models with the smallest KV caches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", default="torch", help="fake: no model is computed")
    parser.add_argument("--num_threads", type=int, default=1, help="of each engine")
    parser.add_argument("--results", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> None:
    """Measure, and print."""
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="shrinking-cache-") as place:
        os.environ.setdefault("MILLRACE_RUNTIME_DIR", str(Path(place) / "runtime"))
        models = [
            ModelConfig(
                model=str(folder),
                dtype="float32",
                backend=options.backend,
                max_num_seqs=options.max_num_seqs,
                num_threads=options.num_threads,
            )
            for folder in write_models(Path(place), 2)
        ]
        for each in models:  # its first load checks it against transformers' code
            with EngineClient.open(each, manager=ManagerConfig(linger=0.1), job="warm", chat=False):
                pass
        _end_manager()

        def once(way: str) -> Run:
            spare = options.spare_mib * _MIB
            made = run(way, models, spare, options.rows, options.prompt, options.tokens)
            print(made, flush=True)
            return made

        rounds = [{way: once(way) for way in WAYS[:: 1 - 2 * (number % 2)]} for number in range(options.rounds)]
    conclude({"settings": vars(options) | {"results": None}} | told(rounds), options.results)


def told(rounds: list[dict[str, Run]]) -> dict[str, Any]:
    """The figures of all rounds; each has both ways."""
    ratios = [round(each["shrinks"].rows_per_s / each["turns"].rows_per_s, 3) for each in rounds]
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "opened_after_s": {way: statistics.median(each[way].opened_after_s for each in rounds) for way in WAYS},
        "given_back_mib": statistics.median(
            each["shrinks"].first_rss_mib[0] - each["shrinks"].first_rss_mib[1] for each in rounds
        ),
        "runs": [asdict(each[way]) for each in rounds for way in WAYS],
    }


if __name__ == "__main__":
    main()

"""The time each element waits for its answer: Generate in a pipeline, and the same pipeline with a batch barrier.

    python -m benchmarks.latency --rate 1.5 --rounds 3 --results benchmarks/results/latency.json

Elements come at random, so many a second on average (exponential gaps, from a seed), whether or not the pipeline keeps
up; their lengths are skewed. `asynchronous` is Generate, `barrier` is Beam's BatchElements and a call that returns when
the whole batch is answered, by the same engine, loaded once. Latency is from the moment an element was due to the
moment its answer comes to the next step. Rounds of the two take turns, and all count. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from benchmarks.command_line import command_line
from benchmarks.contenders import DTYPES
from benchmarks.environments import cache_folder
from benchmarks.results import conclude
from benchmarks.sides.millrace import settings
from benchmarks.timeline import arrivals, percentile
from benchmarks.workload import SHAPES, VOCAB, WORKLOADS, Item, make, write_checkpoints
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import Completion, Prompt
from millrace.transforms.generate import Generate
from millrace.transforms.models.client import ClientOptions, Opener, open_engine_client
from millrace.transforms.models.shared_model import Lease, SharedModel

_DUE = "due"
"""The column that says when an element was due, by the wall clock."""


class Arrive(beam.DoFn):
    """Any element → the items as prompts, each when it is due: so many seconds after the first call."""

    def __init__(self, items: list[Item], due: Sequence[float]) -> None:
        self._items = items
        self._due = due

    def process(self, _start: Any) -> Iterator[Prompt]:
        started = time.time()
        for number, (item, seconds) in enumerate(zip(self._items, self._due, strict=True)):
            due = started + seconds
            time.sleep(max(due - time.time(), 0))
            params = {"max_tokens": item.num_output, "ignore_eos": True}
            yield Prompt(id=f"{started}-{number}", token_ids=item.prompt_token_ids, params=params, columns={_DUE: due})


class AnswerBatch(beam.DoFn):
    """A batch of prompts → their completions, when all of them are answered."""

    def __init__(self, model: SharedModel) -> None:
        self._model = model
        self._lease: Lease | None = None

    def process(self, batch: list[Prompt]) -> Iterator[Completion]:
        self._lease = self._lease or self._model.lease(self)
        client = self._lease.begin()
        futures = [
            client.submit(prompt.content, SamplingParams.parse(prompt.params), request_id=prompt.id) for prompt in batch
        ]
        answers = [future.result() for future in futures]
        self._lease.finish(client)
        for prompt, answer in zip(batch, answers, strict=True):
            yield Completion.of(prompt, answer, client.model, client.info.revision)

    def teardown(self) -> None:
        if self._lease is not None:
            self._lease.end()


def asynchronous(prompts: Any, model: ModelConfig, _batch: int, opener: Opener) -> Any:
    """As a user of millrace writes it."""
    return prompts | Generate(model, open_client=opener)


def barrier(prompts: Any, model: ModelConfig, batch: int, opener: Opener) -> Any:
    """As Beam's RunInference works."""
    shared = SharedModel(ClientOptions(model), opener)
    batches = beam.BatchElements(min_batch_size=batch, max_batch_size=batch)
    return prompts | batches | beam.ParDo(AnswerBatch(shared)).with_output_types(Completion)


SIDES: dict[str, Callable[[Any, ModelConfig, int, Opener], Any]] = {"asynchronous": asynchronous, "barrier": barrier}


def measure(
    side: str,
    items: list[Item],
    due: Sequence[float],
    model: ModelConfig,
    batch: int,
    opener: Opener = open_engine_client,
) -> list[float]:
    """Seconds that each item waited, in the order of the answers."""
    with tempfile.TemporaryDirectory() as folder:
        with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
            prompts = (
                pipeline
                | beam.Create([None], reshuffle=False)
                | "Arrive" >> beam.ParDo(Arrive(items, due)).with_output_types(Prompt)
            )
            answers = SIDES[side](prompts, model, batch, opener)
            _ = answers | "Waited" >> beam.Map(_waited) | beam.io.WriteToText(f"{folder}/waited", num_shards=1)
        waited = [float(line) for path in Path(folder).glob("waited*") for line in path.read_text().split()]
    if len(waited) != len(items):
        raise SystemExit(f"{side} answered {len(waited)} of {len(items)} elements")
    return waited


def _waited(completion: Completion) -> str:
    return str(time.time() - completion.columns[_DUE])


def summary(waited: Sequence[float]) -> dict[str, float]:
    """Seconds at the median, the 99th percentile and on average."""
    return {
        "p50_s": round(percentile(waited, 50), 3),
        "p99_s": round(percentile(waited, 99), 3),
        "mean_s": round(statistics.mean(waited), 3),
    }


def main() -> None:
    """Measure both in turns; the last line is JSON."""
    arguments = _arguments()
    write_checkpoints(arguments.checkpoints, (arguments.shape,))
    model = ModelConfig.parse(settings(arguments.checkpoints / arguments.shape, arguments.dtype))
    items = make(arguments.workload, VOCAB[arguments.shape])
    keeper = open_engine_client(ClientOptions(model))  # so that the model stays loaded from round to round
    load = os.getloadavg()[0]
    waited: dict[str, list[float]] = {side: [] for side in SIDES}
    try:
        for side in SIDES:  # a bit that is not counted
            measure(side, items[: arguments.batch], [0.0] * arguments.batch, model, arguments.batch)
        for number in range(arguments.rounds):
            for side in SIDES:
                due = arrivals(len(items), arguments.rate, seed=number)
                waited[side] += measure(side, items, due, model, arguments.batch)
                print(f"round {number + 1}, {side:12}: {json.dumps(summary(waited[side][-len(items) :]))}", flush=True)
    finally:
        keeper.close()
    conclude(_figures(arguments, waited, load), arguments.results)


def _figures(arguments: argparse.Namespace, waited: dict[str, list[float]], load: float) -> dict[str, Any]:
    named = ("shape", "workload", "dtype", "rate", "batch", "rounds")
    figures: dict[str, Any] = {name: getattr(arguments, name) for name in named}
    figures |= {side: summary(each) for side, each in waited.items()}
    ratio = figures["barrier"]["p50_s"] / figures["asynchronous"]["p50_s"]
    return figures | {"p50_ratio": round(ratio, 2), "load_before": round(load, 2)}


def _arguments() -> argparse.Namespace:
    parser = command_line("latency", __doc__)
    parser.add_argument("--shape", choices=SHAPES, default="opt-125m", help="random weights in the shape of this model")
    parser.add_argument("--workload", choices=WORKLOADS, default="skewed", help="lengths of prompts and outputs")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of weights and activations")
    parser.add_argument("--rate", type=float, default=1.5, help="elements that come in a second")
    parser.add_argument("--batch", type=int, default=8, help="elements of a batch, of the side that has batches")
    parser.add_argument("--rounds", type=int, default=3, help="of each side")
    parser.add_argument("--results", type=Path, default=None, help="file to keep the last line in")
    parser.add_argument(
        "--checkpoints", type=Path, default=cache_folder() / "checkpoints", help="folder of made checkpoints"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()

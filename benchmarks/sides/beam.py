"""The contestants as Beam pipelines: millrace's `Generate`, and RunInference as a user would write it today.

Token ids go in and token ids come out on both sides, so that neither pays for a tokenizer. A pipeline's own start-up
counts; loading the model does not (it is `load_s`): each side loads before its first run and keeps the model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import ModelHandler, PredictionResult, RunInference
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.shared import Shared

from benchmarks.sides.millrace import settings
from benchmarks.sides.transformers import STATIC_BATCH, generate_batch, load_transformers
from benchmarks.texts import text_of
from benchmarks.workload import Item


class MillracePipeline:
    """Create → Generate → count, on the DirectRunner; the manager keeps the model loaded between runs."""

    words: list[str] | None = None
    """For an engine that takes text, not token ids: words that are one token."""

    def load(self, folder: Path, dtype: str) -> None:
        self.open(settings(folder, dtype))

    def open(self, fields: dict[str, Any]) -> None:
        """Start the manager and the model with these settings of ModelConfig."""
        from millrace.model_manager.client.engine_client import EngineClient
        from millrace.model_manager.wire.config import ModelConfig

        self._config = ModelConfig.parse(fields)
        self._client = EngineClient.open(self._config)

    def run(self, items: list[Item]) -> list[int]:
        from millrace import Generate

        prompts = [self._prompt(str(i), item) for i, item in enumerate(items)]
        return run_pipeline(
            items, lambda p: p | beam.Create(prompts, reshuffle=False) | Generate(self._config) | beam.Map(_count)
        )

    def _prompt(self, name: str, item: Item) -> Any:
        from millrace import Prompt

        content = {"token_ids": item.prompt_token_ids} if self.words is None else {"text": text_of(item, self.words)}
        return Prompt(id=name, params={"max_tokens": item.num_output, "ignore_eos": True}, **content)


class StaticHandler(ModelHandler[Item, PredictionResult, Any]):
    """`model.generate` over each batch that RunInference forms: of `batch_size` prompts, or as it does by default."""

    def __init__(self, folder: Path, dtype: str, batch_size: int | None) -> None:
        sizes = {} if batch_size is None else {"max_batch_size": batch_size, "min_batch_size": batch_size}
        super().__init__(**sizes)
        self._folder, self._dtype, self._shared = folder, dtype, Shared()

    def load_model(self) -> Any:
        return self._shared.acquire(lambda: load_transformers(self._folder, self._dtype))

    def run_inference(
        self, batch: Sequence[Item], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        del inference_args
        counts = generate_batch(model, list(batch))
        return [PredictionResult(item, count) for item, count in zip(batch, counts, strict=True)]


class RunInferencePipeline:
    """Create → RunInference with the handler above → count, on the DirectRunner."""

    def __init__(self, batch_size: int | None = STATIC_BATCH) -> None:
        self._batch_size = batch_size

    def load(self, folder: Path, dtype: str) -> None:
        self._handler = StaticHandler(folder, dtype, self._batch_size)
        self._model = self._handler.load_model()

    def run(self, items: list[Item]) -> list[int]:
        return run_pipeline(
            items,
            lambda p: p | beam.Create(items, reshuffle=False) | RunInference(self._handler) | beam.Map(_inferred),
        )


def _count(completion: Any) -> int:
    return int(completion.usage.completion_tokens)


def _inferred(result: PredictionResult) -> int:
    return int(result.inference)


def run_pipeline(items: list[Item], build: Callable[[Any], Any]) -> list[int]:
    """Run a pipeline that yields one count an item, in any order; returns the counts in the order of `items`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
            build(pipeline) | beam.io.WriteToText(str(out), num_shards=1)
        counts = sorted(int(line) for path in Path(folder).glob("counts*") for line in path.read_text().split())
    by_size = sorted(range(len(items)), key=lambda i: items[i].num_output)
    return [count for _, count in sorted(zip(by_size, counts, strict=True))]

"""Beam's own handler for vLLM, which starts vLLM's OpenAI server and sends it each batch of RunInference's.

Runs in an environment that holds both, as the handler starts the server with the Python that it runs in. It gives all
prompts the same `max_tokens`; here each gets its own, which stands for answers that end by themselves.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RunInference
from apache_beam.ml.inference.vllm_inference import VLLMCompletionsModelHandler, getAsyncVLLMClient
from apache_beam.utils.shared import Shared

from benchmarks.sides.beam import run_pipeline
from benchmarks.sides.vllm_server import OPTIONS, end, environment, leading_groups
from benchmarks.texts import text_of, words_of
from benchmarks.workload import Item

Asked = tuple[str, int]
"""A prompt, and how many tokens are to come."""


class OwnLengths(VLLMCompletionsModelHandler):  # type: ignore[misc, unused-ignore]
    """The handler, with as many tokens for each prompt as it asks for."""

    def __init__(self, model_name: str, options: dict[str, str | None], batch_size: int | None) -> None:
        sizes = {} if batch_size is None else {"max_batch_size": batch_size, "min_batch_size": batch_size}
        super().__init__(model_name, options, **sizes)
        self._shared = Shared()

    def load_model(self) -> Any:
        return self._shared.acquire(super().load_model)

    async def _async_run_inference(
        self, batch: Sequence[Asked], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        del inference_args
        fixed: dict[str, Any] = {"model": self._model_name, "temperature": 0, "extra_body": {"ignore_eos": True}}
        async with getAsyncVLLMClient(model.get_server_port()) as client:
            asked = [client.completions.create(prompt=prompt, max_tokens=most, **fixed) for prompt, most in batch]
            answers = await asyncio.gather(*asked)
        return [PredictionResult(*pair) for pair in zip(batch, answers, strict=True)]


class BeamVllm:
    """Create → RunInference with that handler → count, on the local runner. The server stays between runs, and ends
    with this process: the handler ends its first process alone, and only where the interpreter calls `__del__`.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        self._batch_size = batch_size

    def load(self, folder: Path, dtype: str) -> None:
        os.environ.update(environment())
        os.environ.pop("PYTHONPATH", None)
        self._words = words_of(folder)
        self._handler = OwnLengths(str(folder), {**OPTIONS, "dtype": dtype}, self._batch_size)
        with leading_groups():
            self._server = self._handler.load_model()
        atexit.register(end, self._server._server_process)

    def run(self, items: list[Item]) -> list[int]:
        asked = [(text_of(item, self._words), item.num_output) for item in items]
        return run_pipeline(
            items,
            lambda p: p | beam.Create(asked, reshuffle=False) | RunInference(self._handler) | beam.Map(_count),
        )


def _count(result: PredictionResult) -> int:
    return int(result.inference.usage.completion_tokens)

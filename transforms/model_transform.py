"""What Generate, Score and Embed have in common: a model, its client, its dead letters."""

from __future__ import annotations

import uuid
from typing import Any, Self

import apache_beam as beam
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.typehints import typehints

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.errors import ConfigError
from model_manager.wire.sampling import SamplingParams
from transforms.async_requests import AsyncRequestDoFn, OnFailure, Task
from transforms.client import ClientOptions, Opener, SharedClient
from transforms.elements import DEAD_LETTERS, DeadLetter


class ModelTransform(beam.PTransform):
    """A result of the task for each prompt, as each finishes. Transforms of equal models share an inference process."""

    def __init__(
        self,
        task: Task,
        model: str | ModelConfig,
        params: SamplingParams | None,
        *,
        manager: ManagerConfig | None,
        chat: bool | None,
        fail_fast: bool,
        job: str | None,
        open_client: Opener,
    ) -> None:
        super().__init__()
        self._task = task
        self._model = ModelConfig(model=model) if isinstance(model, str) else model
        self._params = params or SamplingParams()
        if self._params.adapter and not self._model.max_loras:
            raise ConfigError(f"adapter={self._params.adapter!r}: takes a model with max_loras of 1 or more")
        self._fail_fast = fail_fast
        self._handles_exceptions = False
        self.job = job or uuid.uuid4().hex
        """Fixed with the graph, so that a bundle's retry has the same."""
        self._options = ClientOptions(self._model, manager=manager, job=self.job, chat=chat)
        self._open_client = open_client

    def with_exception_handling(self) -> Self:
        """Give `(results, dead_letters)`; no request fails the job, unless `fail_fast`."""
        self._handles_exceptions = True
        return self

    @property
    def _on_failure(self) -> OnFailure:
        if self._fail_fast:
            return "raise"
        return "dead_letter" if self._handles_exceptions else "emit"

    def expand(self, prompts: Any) -> Any:
        client = SharedClient(self._options, self._open_client)
        dofn = AsyncRequestDoFn(client, self._task, self._params, self.job, self._on_failure)
        outputs = prompts | type(self).__name__ >> beam.ParDo(dofn).with_outputs(DEAD_LETTERS, main="results")
        results, dead_letters = outputs.results, outputs[DEAD_LETTERS]
        results.element_type = _like(prompts.element_type, self._task.result)
        dead_letters.element_type = _like(prompts.element_type, DeadLetter)
        return (results, dead_letters) if self._handles_exceptions else results

    def display_data(self) -> dict[str, Any]:
        shown = {"model": self._model.model, "backend": self._model.backend, "on_failure": self._on_failure}
        shown |= {name: str(getattr(self._params, name)) for name in self._params.__struct_fields__}
        return {name: DisplayDataItem(value) for name, value in shown.items()} | {
            "job": DisplayDataItem(self.job, label="Job of the requests")
        }


def _like(given: Any, value: type) -> Any:
    """The type of the output: keyed as the input is; Any where nothing is known of that."""
    if isinstance(given, typehints.TupleConstraint) and len(given.tuple_types) == 2:
        return typehints.KV[given.tuple_types[0], value]
    return typehints.Any if given is typehints.Any else value

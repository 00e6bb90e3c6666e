"""Generate: prompts → completions by a language model, in one step of a pipeline.

completions = prompts | Generate("org/model", SamplingParams(max_tokens=128))
"""

from __future__ import annotations

import uuid
from typing import Any

import apache_beam as beam
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.typehints import typehints

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.sampling import SamplingParams
from transforms.async_generate import AsyncGenerateDoFn, OnFailure
from transforms.client import ClientOptions, Opener, SharedClient, open_engine_client
from transforms.elements import DEAD_LETTERS, Completion, DeadLetter


class Generate(beam.PTransform):
    """A Completion for each prompt, as each finishes; keyed input `(key, prompt)` comes back keyed.

    A prompt is text, a Prompt, a list of chat messages, a list of token ids, or a mapping with the columns of a JSONL
    row (rows.py). A request that fails comes out as a Completion with the finish reason `error`, and no other notices;
    `with_exception_handling()` gives `(completions, dead_letters)` instead, `fail_fast=True` fails the job.

    Requests are known by their content: equal prompts without ids or seeds may share one answer. Give them ids where
    the samples are to be independent.

    What is wrong with the model or the machine fails the job at once; what is wrong with an engine is raised for the
    runner to retry the bundle, which then finds its requests running or done. Metrics are in the namespace `millrace`.
    """

    def __init__(
        self,
        model: str | ModelConfig,
        params: SamplingParams | None = None,
        *,
        manager: ManagerConfig | None = None,
        chat: bool | None = None,
        fail_fast: bool = False,
        job: str | None = None,
        open_client: Opener = open_engine_client,
    ) -> None:
        """`chat`: whether text goes through the model's chat template, as one user turn; by default if there is one.

        `job` names the requests in the manager, where progress is counted; by default a new name.
        `open_client` opens what answers, in each worker process; another than the engine's is for tests and dry runs.
        """
        super().__init__()
        self._model = ModelConfig(model=model) if isinstance(model, str) else model
        self._params = params or SamplingParams()
        self._fail_fast = fail_fast
        self._handles_exceptions = False
        self.job = job or uuid.uuid4().hex
        """Fixed with the graph, so that a bundle's retry has the same."""
        self._options = ClientOptions(self._model, manager=manager, job=self.job, chat=chat)
        self._open_client = open_client

    def with_exception_handling(self) -> Generate:
        """Give `(completions, dead_letters)`; no request fails the job, unless `fail_fast`."""
        self._handles_exceptions = True
        return self

    @property
    def _on_failure(self) -> OnFailure:
        if self._fail_fast:
            return "raise"
        return "dead_letter" if self._handles_exceptions else "emit"

    def expand(self, prompts: Any) -> Any:
        client = SharedClient(self._options, self._open_client)
        dofn = AsyncGenerateDoFn(client, self._params, self.job, self._on_failure)
        outputs = prompts | "Generate" >> beam.ParDo(dofn).with_outputs(DEAD_LETTERS, main="completions")
        completions, dead_letters = outputs.completions, outputs[DEAD_LETTERS]
        completions.element_type = _like(prompts.element_type, Completion)
        dead_letters.element_type = _like(prompts.element_type, DeadLetter)
        return (completions, dead_letters) if self._handles_exceptions else completions

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

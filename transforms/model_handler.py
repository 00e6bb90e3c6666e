"""ManagedModelHandler: the same engine behind Beam's own RunInference, without changing the rest of a pipeline.

prompts | RunInference(ManagedModelHandler("org/model", SamplingParams(max_tokens=64)))
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ConfigError, ErrorInfo, InvalidRequest, RequestError
from millrace.model_manager.wire.request import FinishReason
from millrace.model_manager.wire.sampling import SamplingParams

from .elements.completions import Completion, Prompt
from .elements.near_misses import NearMisses
from .elements.prompts import as_prompt, seeded, unusable_dead_letter
from .models.client import Client, ClientOptions, Opener, open_engine_client, takes_seeds


class HeldClient:
    """This process's client, which RunInference holds as its model. It is closed when this object is collected."""

    def __init__(self, client: Client) -> None:
        self.client = client
        weakref.finalize(self, client.close)


class ManagedModelHandler(ModelHandler):
    """Elements as Generate takes them → PredictionResult(element, Completion), in order.

    A request that fails is a Completion with the finish reason `error`: RunInference knows failures only of batches.
    `inference_args` are sampling parameters on top of the handler's. The manager shares the model between processes, so
    RunInference need not. A batch is a barrier; Generate has none.
    """

    def __init__(
        self,
        model: str | ModelConfig,
        params: SamplingParams | None = None,
        *,
        manager: ManagerConfig | None = None,
        chat: bool | None = None,
        open_client: Opener = open_engine_client,
        min_batch_size: int = 8,
        max_batch_size: int = 256,
        **batching: Any,
    ) -> None:
        """Takes Generate's arguments; `batching` goes to Beam's ModelHandler."""
        super().__init__(min_batch_size=min_batch_size, max_batch_size=max_batch_size, **batching)
        self._model = ModelConfig(model=model) if isinstance(model, str) else model
        self._params = params or SamplingParams()
        self._options = ClientOptions(self._model, manager=manager or ManagerConfig(), job=uuid.uuid4().hex, chat=chat)
        self._open_client = open_client
        self._seeds = takes_seeds(self._model)
        self._near_misses = NearMisses()

    def load_model(self) -> HeldClient:
        """Wait until the manager has the model."""
        return HeldClient(self._open_client(self._options))

    def run_inference(
        self, batch: Sequence[Any], model: HeldClient, inference_args: dict[str, Any] | None = None
    ) -> Iterator[PredictionResult]:
        """Submit the whole batch, then give the results in its order."""
        params = self._params.updated(inference_args or {})
        run = uuid.uuid4().hex
        requests: list[tuple[Prompt | None, Future[Any] | RequestError]] = []
        try:
            for index, element in enumerate(batch):
                requests.append(self._submit(element, params, model.client, f"{run}-{index}"))
            for element, (prompt, submitted) in zip(batch, requests, strict=True):
                completion = self._completion(element, prompt, submitted, model.client.info.revision)
                yield PredictionResult(example=element, inference=completion, model_id=self._model.model)
        finally:
            for _, submitted in requests:
                if isinstance(submitted, Future):
                    submitted.cancel()  # does nothing to those that are finished

    def _submit(
        self, element: Any, params: SamplingParams, client: Client, request_id: str
    ) -> tuple[Prompt | None, Future[Any] | RequestError]:
        prompt: Prompt | None = None
        try:
            prompt = as_prompt(element)
            if isinstance(element, dict):
                self._near_misses.look(prompt.columns)
            params = params.updated(prompt.params)
            params = seeded(params, prompt) if self._seeds else params
            future = client.submit(prompt.content, params, request_id=request_id)
        except RequestError as error:
            return prompt, error
        return prompt, future

    def _completion(
        self, element: Any, prompt: Prompt | None, submitted: Future[Any] | RequestError, revision: str
    ) -> Completion:
        error = submitted if isinstance(submitted, RequestError) else submitted.exception()
        if prompt is not None and isinstance(submitted, Future) and error is None:
            return Completion.of(prompt, submitted.result(), self._model.model, revision)
        if not isinstance(error, RequestError):
            assert error is not None
            raise error
        return Completion(
            id=prompt.id if prompt else unusable_dead_letter(element, error).id,
            finish_reason=FinishReason.ERROR,
            model=self._model.model,
            revision=revision,
            columns=prompt.columns if prompt else {},
            error=ErrorInfo.of(error, RequestError),
        )

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ConfigError for what is no sampling parameter."""
        try:
            self._params.updated(inference_args or {})
        except InvalidRequest as error:
            raise ConfigError(f"inference_args: {error}") from None

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """The size of the batch as JSON."""
        return len(msgspec.json.encode(batch, enc_hook=str))

    def get_metrics_namespace(self) -> str:
        """Beam's own metrics of RunInference go here."""
        return "BeamML_Millrace"

    def share_model_across_processes(self) -> bool:
        """False: the manager does it."""
        return False

"""`/v1/embeddings`: prompts as vectors."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.model_manager.client.encoding import PromptContent
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest
from millrace.model_manager.wire.request import Adapter
from millrace.model_manager.wire.sampling import SamplingParams

from ..requests.exchanges import End, Question
from ..requests.service import Service
from .bodies import EmbeddingBody, ignored, read
from .parameters import priority_of
from .prompts import prompts_of

_BYTES = 4
"""Bytes that a float32 takes."""


def embedding(fields: Mapping[str, Any], service: Service) -> EmbeddingAnswer:
    """What a body asks. Raises InvalidRequest, PromptTooLong, HttpError, or EngineError while no model is loaded."""
    body = read(fields, EmbeddingBody)
    adapter = service.adapter_of(body.model)
    client = service.engine.client
    try:
        BACKENDS[service.served.backend].check_task("embed")
    except ConfigError as error:
        raise InvalidRequest(str(error)) from None
    own = {"priority": priority_of(body.priority), "cache_salt": body.cache_salt, "adapter": adapter}
    params = SamplingParams.parse(own)
    prompts = [client.encoded(prompt, room=0) for prompt in prompts_of("input", body.input)]
    questions = [_question(prompt, params) for prompt in prompts]
    return EmbeddingAnswer(body, body.model or service.served.model, questions, ignored(fields, EmbeddingBody))


def _question(prompt: PromptContent, params: SamplingParams) -> Question:
    def ask(client: EngineClient, request_id: str, _on_delta: Any, adapter: Adapter | None, may_wait: bool) -> Any:
        return client.embed(prompt, params, request_id=request_id, adapter=adapter, may_wait=may_wait)

    return Question(ask, params.priority, adapter=params.adapter)


@dataclass(frozen=True)
class EmbeddingAnswer:
    """Vectors, in the order of the prompts."""

    body: EmbeddingBody
    model: str
    questions: list[Question]
    ignored: dict[str, str]
    is_stream = False

    def whole(self, ends: Sequence[End]) -> dict[str, Any]:
        """The whole answer; raises InvalidRequest for other `dimensions` than the model's."""
        tokens = sum(end.output.prompt_tokens for end in ends)
        return {
            "object": "list",
            "model": self.model,
            "data": [
                {"object": "embedding", "index": at, "embedding": self._vector(end)} for at, end in enumerate(ends)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def _vector(self, end: End) -> str | list[float]:
        data = end.output.embedding or b""
        if self.body.dimensions not in (None, len(data) // _BYTES):
            raise InvalidRequest(f"dimensions={self.body.dimensions}: takes the model's own, {len(data) // _BYTES}")
        return base64.b64encode(data).decode() if self.body.encoding_format == "base64" else end.output.vector

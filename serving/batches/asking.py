"""Notes what a body asks of the engine: the routes' own functions get a client that sends nothing.

So a request of a batch is read as its endpoint reads it, and its answer has that endpoint's form. Prompts stay text
here; the job makes tokens of them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.errors import InvalidRequest, MillraceError
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import ModelInfo

from ..http.http_errors import HttpError, http_error, internal
from ..openai.chat import chat
from ..openai.completions import completion
from ..openai.embeddings import embedding
from ..openai.endpoints import Answers
from ..openai.naming import names_of, renamed
from ..openai.parameters import INTERACTIVE
from ..requests.exchanges import Question
from ..requests.service import Service
from ..settings import ServeConfig

ENDPOINTS: dict[str, Any] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completion,
    "/v1/embeddings": embedding,
}
"""The endpoints that batches take, and what reads their bodies."""
COMMANDS: dict[str, tuple[str, ...]] = dict.fromkeys(ENDPOINTS, ("run", "--keep_cut")) | {"/v1/embeddings": ("embed",)}
"""The command that answers each endpoint's rows, with the flags that make it answer as the endpoint does."""
_NO_LIMIT = sys.maxsize
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written:
    """What was asked for one answer, or one set of `n`."""

    prompt: Any
    params: SamplingParams

    def row(self, row_id: str) -> dict[str, Any]:
        """The question as a row of a job's input. A row's own priority can only put it after other jobs' rows."""
        params = msgspec.structs.replace(self.params, priority=max(0, self.params.priority - INTERACTIVE))
        is_chat = isinstance(self.prompt, list) and bool(self.prompt) and isinstance(self.prompt[0], Mapping)
        content = {"messages" if is_chat else "prompt": self.prompt}
        return {"id": row_id, **content, "sampling_params": msgspec.to_builtins(params)}


class _WritingClient:
    """Stands for an EngineClient where a request is prepared and asked."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        """What is known of the model."""
        return getattr(self._client, name)

    def encoded(self, prompt: Any, *, room: int = 1) -> Any:
        """The prompt as it is. Raises what the client raises for token ids, which need no tokenizer to be checked."""
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            self._client.encoded(prompt, room=room)
        return prompt

    def submit(self, prompt: Any, params: SamplingParams, **_: Any) -> Written:
        """Note the question."""
        return Written(prompt, params)

    def embed(self, prompt: Any, params: SamplingParams, **_: Any) -> Written:
        """Note the question."""
        return Written(prompt, params)


class Desk:
    """Reads bodies: a Service, as far as preparing a request needs one. Raises EngineError while no model is loaded."""

    client_kind = _WritingClient

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = cast(EngineClient, self.client_kind(service.engine.client))
        self.engine = self

    def __getattr__(self, name: str) -> Any:
        """The service's."""
        return getattr(self._service, name)

    @property
    def client(self) -> EngineClient:
        """The client that writes down."""
        return self._client

    def prepared(self, endpoint: str, body: Mapping[str, Any]) -> Answers:
        """What a body asks; raises HttpError, which names the body's fields."""
        try:
            return self._prepared(endpoint, body)
        except HttpError as error:
            raise renamed(error, names_of(body, endpoint)) from None

    def _prepared(self, endpoint: str, body: Mapping[str, Any]) -> Answers:
        try:
            if body.get("stream"):
                raise InvalidRequest("stream=True: takes false in a batch")
            answers: Answers = ENDPOINTS[endpoint](body, cast(Service, self))
        except MillraceError as error:
            raise http_error(error) from None
        except HttpError:
            raise
        except Exception:
            _log.exception("a request of a batch failed")
            raise internal() from None
        most = self.settings.max_inflight
        if (count := sum(question.count for question in answers.questions)) > most:
            raise HttpError(400, f"n: the request asks for {count} answers: takes at most {most}", param="n")
        return answers

    def written(self, question: Question) -> Written:
        """What a question submits, noted."""
        return cast(Written, question.ask(self._client, "", None, None, True))


class _RoomyClient(_WritingClient):
    @property
    def info(self) -> ModelInfo:
        """The model, with room for every answer."""
        return msgspec.structs.replace(self._client.info, max_model_len=_NO_LIMIT)

    def encoded(self, prompt: Any, *, room: int = 1) -> Any:  # noqa: ARG002 (the client's own parameter)
        """The prompt as it is: it was checked."""
        return prompt


class AcceptedDesk(Desk):
    """Reads bodies that were accepted before, perhaps by a server that allowed more or had other adapters."""

    client_kind = _RoomyClient

    @property
    def settings(self) -> ServeConfig:
        """The service's, without its limits of a request."""
        return msgspec.structs.replace(self._service.settings, max_tokens=None, max_inflight=_NO_LIMIT)

    def adapter_of(self, _name: str | None) -> str:
        """Empty: the row that the body became names it."""
        return ""

"""The routes, and errors in their form: {"error", "error_type"}."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.errors import InvalidRequest, MillraceError
from millrace.model_manager.wire.sampling import MAX_ANSWERS, MAX_STOPS

from ..http.http_errors import HttpError, http_error
from ..http.replies import HttpReply
from ..openai.endpoints import ModelEndpoint
from ..requests.service import Service
from .generate_body import GenerateBody, ignored, names_of, read_body
from .generated_answer import GeneratedAnswer

_MOST_PROMPTS = 2
"""A longer text that is truncated: so many times the longest prompt's length is tokenized."""
_TYPES = {422: "validation", 429: "overloaded", 424: "generation"}


def tgi_routes(service: Service) -> list[Route]:
    """TGI's routes."""

    def route(path: str, make: Any) -> Route:
        return Route(path, _GenerateEndpoint(service, path, make), methods=["POST"])

    return [
        route("/generate", partial(generated, is_stream=False)),
        route("/generate_stream", partial(generated, is_stream=True)),
        route("/", compatible),
        Route("/info", _InfoHandler(service).info),
    ]


def generated(fields: Mapping[str, Any], service: Service, *, is_stream: bool) -> GeneratedAnswer:
    """What a body asks. Raises InvalidRequest, PromptTooLong, or EngineError while no model is loaded."""
    body = read_body(fields, is_stream=is_stream)
    adapter, client = service.adapter_of(body.parameters.adapter_id), service.engine.client
    if body.parameters.truncate is None:
        prompt = client.encoded(body.inputs)
    else:
        prompt = _tokens(body, service)[-body.parameters.truncate :]
        prompt = client.encoded(prompt)
    first = None
    if body.parameters.decoder_input_details:
        token = next(iter(prompt))
        if not isinstance(token, int):
            raise InvalidRequest("decoder_input_details: the engine takes text, so there are no tokens here")
        text = client.tokenizer.decode([token], skip_special_tokens=False)
        first = {"id": token, "text": text, "logprob": None}
    special = frozenset(client.info.eos_token_ids)
    most = service.settings.max_tokens
    answer = GeneratedAnswer(body, prompt, first, special, adapter, is_stream=is_stream, most=most)
    answer.ignored = ignored(fields)
    return answer


def compatible(fields: Mapping[str, Any], service: Service) -> GeneratedAnswer:
    """The same at the base address, where a whole answer is in a list."""
    answer = generated(fields, service, is_stream=bool(fields.get("stream")))
    answer.as_list = True
    return answer


def _tokens(body: GenerateBody, service: Service) -> list[int]:
    """The tokens, whose last ones are asked for. The beginning of a text that takes seconds to tokenize is left out."""
    if BACKENDS[service.served.backend].takes != "tokens":
        raise InvalidRequest("truncate: the engine takes text, so there are no tokens here")
    tokenizer, size = service.engine.client.tokenizer, service.engine.client.info.max_model_len
    most = _MOST_PROMPTS * size * tokenizer.most_characters(body.inputs, size)
    return tokenizer.encode(body.inputs[-most:])


class _TgiReply(HttpReply):
    """TGI's form."""

    done = b""

    async def json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """See HttpReply; what is wrong with a request is 422 there, and what an engine did 424."""
        await super().json(value, _status(status), headers)

    def error_body(self, error: HttpError) -> dict[str, Any]:
        """See HttpReply."""
        status = _status(error.status)
        told = f"Input validation error: {error}" if status == 422 else str(error)
        return {"error": told, "error_type": _TYPES.get(status, "validation" if status < 500 else "generation")}


def _status(status: int) -> int:
    return {400: 422, 500: 424, 504: 424}.get(status, status)


class _GenerateEndpoint(ModelEndpoint):
    reply_kind = _TgiReply

    def names(self, fields: Mapping[str, Any]) -> dict[str, str]:
        """See Endpoint."""
        return names_of(fields)


class _InfoHandler:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def info(self, _request: Request) -> Response:
        """The model and the limits."""
        try:
            info = self._service.engine.client.info
        except MillraceError as error:
            wrong = http_error(error)
            return JSONResponse({"error": str(error), "error_type": "overloaded"}, wrong.status, wrong.headers)
        served, settings = self._service.served, self._service.settings
        return JSONResponse(
            {
                "model_id": served.model,
                "model_sha": info.revision or None,
                "model_dtype": info.dtype,
                "model_device_type": info.device,
                "model_pipeline_tag": "text-generation",
                "max_concurrent_requests": settings.max_inflight,
                "max_best_of": MAX_ANSWERS,
                "max_stop_sequences": MAX_STOPS,
                "max_input_tokens": info.max_model_len - 1,
                "max_total_tokens": info.max_model_len,
                "max_client_batch_size": 1,
                "router": "millrace",
                "version": served.version,
                "sha": None,
                "docker_label": None,
            }
        )

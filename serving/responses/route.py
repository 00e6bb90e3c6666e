"""The route `/v1/responses`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.routing import Route

from millrace.model_manager.wire.errors import InvalidRequest

from ..http.http_errors import HttpError
from ..http.observers import Observed
from ..http.replies import HttpReply
from ..openai.bodies import read
from ..openai.chat import ChatAnswer, chat
from ..openai.endpoints import ModelEndpoint
from ..requests.exchanges import End, Exchange
from ..requests.service import Service
from .answer import ResponseAnswer
from .conversation import ResponsesBody, as_sent, chat_fields

PATH = "/v1/responses"


def response_routes(service: Service) -> list[Route]:
    """The route of responses."""
    return [Route(PATH, _Responding(service, PATH, response), methods=["POST"])]


def response(fields: Mapping[str, Any], service: Service) -> ResponseAnswer:
    """What a body asks. Raises InvalidRequest, PromptTooLong, HttpError, or EngineError while no model is loaded."""
    body = read(fields, ResponsesBody)
    try:
        answer = chat(chat_fields(fields, body) | {"stream": body.stream}, service)
    except InvalidRequest as error:
        raise as_sent(error, body) from None
    assert isinstance(answer, ChatAnswer), "what a conversation is answered with"
    return ResponseAnswer(answer, fields, body, body.model or service.served.model)


class _ResponseReply(HttpReply):
    """Events that have names; nothing follows the last one."""

    def encoded(self, value: dict[str, Any]) -> bytes:
        """See HttpReply."""
        return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), msgspec.json.encode(value))

    done = b""

    def error_event(self, error: HttpError) -> dict[str, Any]:
        """See HttpReply."""
        told = {"code": error.code, "message": str(error), "param": error.param}
        return {"type": "error", "sequence_number": self.num_events, **told}


class _Responding(ModelEndpoint):
    """A stream says at once that it has begun."""

    reply_kind = _ResponseReply

    async def _parts(self, answer: Any, exchange: Exchange, reply: HttpReply, observed: Observed) -> list[End]:
        first: Iterable[dict[str, Any]] = answer.first_parts()
        await reply.events(first)
        return await super()._parts(answer, exchange, reply, observed)

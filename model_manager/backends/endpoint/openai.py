"""OpenAI's dialect: `/chat/completions`, `/completions` and `/embeddings` under `/v1`.

vLLM, SGLang, LMDeploy, llama-server, TensorRT-LLM, Ray Serve and many services speak it. A parameter beyond OpenAI's
own is sent only if the option `extra_parameters` names it: some servers ignore what they do not know. With vLLM's
`return_token_ids` among them answers are read as streams, and go on from their tokens at `/completions`.
Source: OpenAI API reference; vLLM's documentation for the names of extra parameters.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from ...wire.constraint import Constraint
from ...wire.decoding import json_decoder
from ...wire.dialect_parameters import STRUCTURED, TOKEN_IDS, dialect_parameters
from ...wire.endpoint_options import EndpointOptions, listed
from ...wire.errors import InvalidRequest
from ...wire.request import FinishReason, Request
from ...wire.sampling import SamplingParams
from .dialects import Call, Garbled, ServerAnswer, check_task, check_text, given, has_path, parsed
from .given_logprobs import NO_ENTRIES, logprobs_in, num_asked
from .streams import StreamPiece, TokenIdList, goes_on

log = logging.getLogger(__name__)

_STREAM = {"stream": True, "stream_options": {"include_usage": True}, TOKEN_IDS: True, "stream_interval": 8}
"""vLLM's own names: an event for each 8 tokens, because each costs both sides about 0.15 ms of processor time."""
_ENDINGS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}


class _PromptTokensDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptTokensDetails | None = None


_NO_USAGE = msgspec.Raw(b"null")


class _LogprobsAnswer(msgspec.Struct):
    content: msgspec.Raw = NO_ENTRIES


class _MessageAnswer(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _ChoiceAnswer(msgspec.Struct):
    text: str | None = None
    message: _MessageAnswer | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: msgspec.Raw = NO_ENTRIES


class _CompletionAnswer(msgspec.Struct):
    choices: list[_ChoiceAnswer]
    usage: msgspec.Raw = _NO_USAGE


class _StreamChoice(msgspec.Struct):
    text: str | None = None
    delta: _MessageAnswer | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: TokenIdList | None = None
    prompt_token_ids: TokenIdList | None = None


class _Chunk(msgspec.Struct):
    choices: list[_StreamChoice]
    usage: msgspec.Raw = _NO_USAGE
    prompt_token_ids: TokenIdList | None = None


class _Vector(msgspec.Struct):
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    usage: msgspec.Raw = _NO_USAGE


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class OpenAI:
    """Chat completions, or with `chat=False` completions."""

    probes: tuple[Call, ...] = (Call("/models"),)
    needs_probes = False
    needs_prompt_token_ids = True

    def __init__(self, model: str, options: EndpointOptions, *, chat: bool) -> None:
        parameters = dialect_parameters(options)
        assert parameters is not None, "a dialect of OpenAI's"
        self.name = options.dialect
        self.max_model_len = 0
        self._model = model
        self._chat = chat
        self._max_tokens = options.max_tokens_name
        self._parameters = parameters
        extra = listed(options.extra_parameters)
        self._gives_tokens = TOKEN_IDS in extra
        self._structured = "constraint" in extra

    def learn(self, route: str, body: bytes) -> None:
        """The list of models; a model that is not in it may be served all the same."""
        del route
        cards = parsed(body, _Models).data
        found = next((card for card in cards if card.id == self._model), None)
        if found is None and cards:
            log.warning("%s is not in the server's list of models: %s", self._model, ", ".join(c.id for c in cards[:8]))
        self.max_model_len = (found and found.max_model_len) or 0

    def base(self, url: str) -> str:
        """A host alone has its routes under /v1."""
        return url if has_path(url) else f"{url}/v1"

    def check(self, request: Request) -> None:
        """Raises InvalidRequest for what cannot be asked for."""
        check_task(request, self.name, ("generate", "embed"))
        if request.task == "embed":
            _text_of(request)
            if request.pooling != "last":
                raise InvalidRequest(f"pooling={request.pooling!r}: the server's model decides it")
            return
        if not self._chat:
            check_text(request, self.name)
        elif not (request.messages or request.text):
            raise InvalidRequest("prompt: is empty")
        self._parameters.check(request.params)

    def streams(self, request: Request) -> bool:
        """Text that may begin a stop string comes after its tokens, so with stop strings no answer goes on."""
        return self._gives_tokens and request.task == "generate" and not request.params.stop and goes_on(request.params)

    def call(self, request: Request) -> Call:
        """The body for one answer."""
        if request.task == "embed":
            return _call("/embeddings", {"model": self._model, "input": _text_of(request), "encoding_format": "float"})
        if request.output_token_ids:
            return _call("/completions", self._rest(request))
        return _call("/chat/completions" if self._chat else "/completions", self.fields(request))

    def _rest(self, request: Request) -> dict[str, Any]:
        """What stands in the body for the rest of an answer."""
        fields, num_given = self.fields(request), len(request.output_token_ids)
        fields["max_tokens"] = fields.pop(self._max_tokens) - num_given
        if "min_tokens" in fields:
            fields["min_tokens"] = max(0, fields["min_tokens"] - num_given)
        fields.pop("messages", None)
        return fields | {"prompt": request.prompt_token_ids + request.output_token_ids}

    def fields(self, request: Request) -> dict[str, Any]:
        """What stands in the body of a completion."""
        params = request.params
        fields: dict[str, Any] = {"model": self._model}
        if not self._chat:
            fields["prompt"] = request.text
        else:
            fields["messages"] = request.messages or [{"role": "user", "content": request.text}]
        fields |= {self._max_tokens: params.max_tokens, "temperature": params.temperature}
        fields |= given(params, self._parameters.own)
        if params.logprobs is not None:
            fields |= self._logprobs(params)
        if self.streams(request):
            fields |= _STREAM
        if "logit_bias" in fields:
            fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
        if params.constraint is not None:
            fields |= self._constraint(params.constraint)
        return fields

    def _logprobs(self, params: SamplingParams) -> dict[str, Any]:
        asked = num_asked(params)
        return {"logprobs": True, "top_logprobs": asked} if self._chat else {"logprobs": asked}

    def _constraint(self, constraint: Constraint) -> dict[str, Any]:
        if self._structured:
            return {"structured_outputs": {STRUCTURED[constraint.kind]: getattr(constraint, constraint.kind)}}
        if constraint.kind == "json":
            return {"response_format": {"type": "json_object"}}
        schema = {"name": "answer", "strict": True, "schema": constraint.json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def read(self, request: Request, body: bytes, headers: Mapping[str, str]) -> ServerAnswer:
        """The first choice, or the one vector."""
        del headers
        if request.task == "embed":
            found = parsed(body, _Embeddings)
            if not found.data or not found.data[0].embedding:
                raise Garbled("its answer has no vector")
            return ServerAnswer(prompt_tokens=_counted(found.usage).prompt_tokens, embedding=found.data[0].embedding)
        completion = parsed(body, _CompletionAnswer)
        if not completion.choices:
            raise Garbled("its answer has no choices")
        return _answer(completion.choices[0], _counted(completion.usage), request.params)

    def piece(self, event: bytes) -> StreamPiece:
        """The last event has the counts, and no choice."""
        chunk = parsed(event, _Chunk)
        usage = _counted(chunk.usage)
        choice = chunk.choices[0] if chunk.choices else _StreamChoice()
        said = choice.delta or _MessageAnswer(choice.text)
        return StreamPiece(
            text=said.content or said.refusal or "",
            token_ids=choice.token_ids,
            num_tokens=usage.completion_tokens or 0,
            prompt_token_ids=choice.prompt_token_ids or chunk.prompt_token_ids,
            finish_reason=None if choice.finish_reason is None else _ending(choice.finish_reason),
            stop_reason=choice.stop_reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=(usage.prompt_tokens_details or _PromptTokensDetails()).cached_tokens or 0,
        )


def _counted(usage: msgspec.Raw) -> _Usage:
    """The counts of an answer; zeros where they are missing or garbled: the answer itself is paid for and whole."""
    with contextlib.suppress(msgspec.DecodeError):
        return json_decoder(_Usage | None).decode(usage) or _Usage()
    return _Usage()


def _ending(reason: str | None) -> FinishReason:
    if reason == "content_filter":
        raise InvalidRequest("the server's content filter stopped the answer")
    if reason not in _ENDINGS:
        raise Garbled(f"its answer ended for finish_reason={reason!r}")
    return _ENDINGS[reason]


def _answer(choice: _ChoiceAnswer, usage: _Usage, params: SamplingParams) -> ServerAnswer:
    ending = _ending(choice.finish_reason)
    text = choice.text if choice.message is None else choice.message.content or choice.message.refusal or ""
    if text is None:
        raise Garbled("its answer has no text")
    details = usage.prompt_tokens_details or _PromptTokensDetails()
    return ServerAnswer(
        text=text,
        finish_reason=ending,
        stop_reason=choice.stop_reason,
        num_tokens=usage.completion_tokens or 0,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=details.cached_tokens or 0,
        logprobs=logprobs_in(_entries(choice.logprobs), text, params),
    )


def _entries(given: msgspec.Raw) -> msgspec.Raw:
    """The entries of tokens, in the form of chats; `null` where there are none."""
    with contextlib.suppress(msgspec.DecodeError):
        return (json_decoder(_LogprobsAnswer | None).decode(given) or _LogprobsAnswer()).content
    return NO_ENTRIES


def _text_of(request: Request) -> str:
    """The text to embed: a conversation has one if it is a single message."""
    messages = request.messages or [{"content": request.text}]
    text = messages[0].get("content")
    if len(messages) > 1 or not isinstance(text, str) or not text:
        raise InvalidRequest("prompt: an embedding takes one text that is not empty")
    return text


def _call(route: str, fields: dict[str, Any]) -> Call:
    return Call(route, msgspec.json.encode(fields))

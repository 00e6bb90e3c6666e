"""`/v1/chat/completions`: conversations, through the model's chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.openai_answers import chat_logprobs, choice, reason_word
from millrace.model_manager.wire.request import Output

from ..http.http_errors import HttpError
from ..requests.service import Service
from .answers import RouteAnswer, prompt_logprobs, question
from .bodies import ChatBody, ignored, read
from .parameters import sampling
from .plain_messages import plain_messages
from .tools import Calling, CallText, calling_of

_CALLED = "tool_calls"


def chat(fields: Mapping[str, Any], service: Service) -> RouteAnswer:
    """What a body asks. Raises InvalidRequest, PromptTooLong, HttpError, or EngineError while no model is loaded."""
    body = read(fields, ChatBody)
    adapter = service.adapter_of(body.model)
    client = service.engine.client
    check_chats(client, service)
    calling = calling_of(body.tools, body.tool_choice)
    most = service.settings.max_tokens
    params = sampling(_with_call(fields, calling), client.info.max_model_len, adapter, most=most)
    prompt = client.encoded(plain_messages(body.messages, calling.instruction() if calling.functions else ""))
    name = body.model or service.served.model
    return ChatAnswer(body, name, [question(prompt, params)], ignored(fields, ChatBody), calling)


def check_chats(client: EngineClient, service: Service) -> None:
    """Raises HttpError (400) for a model without a chat template; an engine that takes text has its own."""
    if BACKENDS[service.served.backend].takes == "tokens" and not client.tokenizer.has_chat_template:
        raise HttpError(
            400,
            f"messages: {service.served.model} has no chat template; send the text as prompt to /v1/completions, or "
            "serve a model that has one",
            param="messages",
            code="no_chat_template",
        )


def _with_call(fields: Mapping[str, Any], calling: Calling) -> Mapping[str, Any]:
    """The body's fields, with the constraint of a call."""
    constraint = calling.constraint()
    if constraint is None:
        return fields
    if fields.get("response_format", {"type": "text"}) != {"type": "text"}:
        raise InvalidRequest("response_format: takes nothing beside tools; tool_choice=none leaves them out")
    return {**fields, "constraint": constraint}


class ChatAnswer(RouteAnswer):
    """A chat completion."""

    prefix, whole_kind, part_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, *given: Any) -> None:
        """`given`: RouteAnswer's arguments, then the functions that may be called."""
        *common, calling = given
        super().__init__(*common)
        self._calling: Calling = calling
        self._texts: dict[int, CallText] = {}
        self._named: set[int] = set()
        """Choices whose call has told its function."""

    def choice(self, index: int, output: Output) -> dict[str, Any]:
        """See RouteAnswer."""
        tokens = None if output.logprobs is None else output.logprobs.tokens
        made = choice(index, output.text, output.finish_reason, tokens, is_chat=True)
        text = CallText(self._calling)
        arguments = text.add(output.text) + text.end(is_cut=output.is_cut) if self._calling.way != "none" else ""
        if self._calling.way != "none" and text.is_call and text.name is not None:
            made["message"] |= {"content": None, "tool_calls": [_call(text, arguments)]}
            made["finish_reason"] = self._reason(output, is_call=True)
        return {**made, "stop_reason": output.stop_reason, **prompt_logprobs(output)}

    def of_delta(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """See RouteAnswer."""
        yield from self._begun(index)
        tokens = None if delta.logprobs is None else delta.logprobs.tokens
        yield from self._said(index, delta.text, chat_logprobs(tokens))

    def of_end(self, index: int, output: Output) -> Iterator[dict[str, Any]]:
        """See RouteAnswer."""
        yield from self._begun(index)
        text = self._texts[index]
        is_call = self._calling.way != "none" and text.is_call
        if is_call and (rest := text.end(is_cut=output.is_cut)):
            yield _part(index, {"tool_calls": [{"index": 0, "function": {"arguments": rest}}]})
        if text.nameless:  # as in a whole answer, so that no token is lost
            yield _part(index, {"content": text.nameless})
        reason = self._reason(output, is_call=is_call and text.name is not None)
        yield {**_part(index, {}), "finish_reason": reason, "stop_reason": output.stop_reason}

    def _begun(self, index: int) -> Iterator[dict[str, Any]]:
        """The role, once for each choice."""
        if index not in self._texts:
            self._texts[index] = CallText(self._calling)
            yield _part(index, {"role": "assistant", "content": "" if self._calling.way == "none" else None})

    def _said(self, index: int, said: str, logprobs: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        text = self._texts[index]
        arguments = text.add(said) if self._calling.way != "none" else ""
        if self._calling.way == "none" or not text.is_call:
            yield _part(index, {"content": said}, logprobs)
        elif text.name is not None and index not in self._named:
            self._named.add(index)
            yield _part(index, {"tool_calls": [{"index": 0, **_call(text, arguments)}]}, logprobs)
        elif arguments:
            yield _part(index, {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}, logprobs)
        elif logprobs is not None:
            yield _part(index, {}, logprobs)

    def _reason(self, output: Output, *, is_call: bool) -> str:
        """A call that is whole ends an answer as OpenAI says: `stop` where it was named, else `tool_calls`."""
        word = reason_word(output.finish_reason)
        return _CALLED if is_call and word == "stop" and self._calling.named is None else word


def _call(text: CallText, arguments: str) -> dict[str, Any]:
    return {"id": text.call_id, "type": "function", "function": {"name": text.name, "arguments": arguments}}


def _part(index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

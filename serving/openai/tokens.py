"""`/tokenize` and `/detokenize`, as vLLM's server has them. Neither asks the engine anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.model_manager.client.encoding import check_size
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest, PromptTooLong, counted

from ..requests.service import Service
from .bodies import DetokenizeBody, TokenizeBody, read
from .chat import check_chats
from .plain_messages import plain_messages


def tokenize(fields: Mapping[str, Any], service: Service) -> dict[str, Any]:
    """The token ids of a text or a conversation; raises PromptTooLong for one that no prompt may be as long as."""
    body = read(fields, TokenizeBody)
    service.adapter_of(body.model)
    tokenizer = _tokenizer(service)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt: takes a text, or messages in its place")
    if body.messages is not None:
        check_chats(service.engine.client, service)
        text, has_special = tokenizer.chat_text(plain_messages(body.messages)), False
    else:
        text, has_special = body.prompt or "", body.add_special_tokens
    info = service.engine.client.info
    check_size(tokenizer, text, info)
    tokens = tokenizer.encode(text, add_special_tokens=has_special)
    return {"tokens": tokens, "count": len(tokens), "max_model_len": info.max_model_len}


def detokenize(fields: Mapping[str, Any], service: Service) -> dict[str, Any]:
    """The text of token ids; raises PromptTooLong for more than a prompt may have."""
    body = read(fields, DetokenizeBody)
    service.adapter_of(body.model)
    info = service.engine.client.info
    if (count := len(body.tokens)) > info.max_model_len:
        raise PromptTooLong(
            f"tokens: the list has {counted(count, 'id')}, {info.name} has {info.max_model_len} positions"
        )
    if not all(0 <= token < info.vocab_size for token in body.tokens):
        raise InvalidRequest(f"tokens: takes ids of 0 to {info.vocab_size - 1}")
    return {"prompt": _tokenizer(service).decode(body.tokens, skip_special_tokens=False)}


def _tokenizer(service: Service) -> Tokenizer:
    try:
        return service.engine.client.tokenizer
    except ConfigError as error:
        raise InvalidRequest(str(error)) from None

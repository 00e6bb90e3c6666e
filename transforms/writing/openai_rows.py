"""Results of rows that came in OpenAI's batch format, in the format that OpenAI's batches have for results.

    {"id", "custom_id", "response": {"status_code": 200, "request_id", "body": {a chat.completion}}, "error": null}
    {"id", "custom_id", "response": null, "error": {"code", "message"}, "source", "row"}

Source: https://platform.openai.com/docs/guides/batch. Both ids are the row's own. What else the row had beside its body
stands under `columns`, and a failed row has its place and the row as it was, as every dead letter has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from millrace.model_manager.wire.logprobs import TokenLogprob
from millrace.model_manager.wire.messages import FinishReason

from ..elements.completions import Choice, Completion, DeadLetter, content_id
from ..elements.openai_batch import CHAT_URL, OF_THE_REQUEST

_REASONS = {FinishReason.DEADLINE: FinishReason.LENGTH}
"""OpenAI's word for an answer that was cut, whatever cut it."""


def completion_row(completion: Completion) -> dict[str, Any]:
    """A row of an output file."""
    columns = {name: value for name, value in completion.columns.items() if name not in OF_THE_REQUEST}
    return {
        "id": completion.id,
        "custom_id": completion.id,
        "response": {"status_code": 200, "request_id": f"req_{_hash(completion)}", "body": _body(completion)},
        "error": None,
        **({"prompt_hash": completion.prompt_hash} if completion.prompt_hash else {}),
        **({"columns": columns} if columns else {}),
    }


def error_row(letter: DeadLetter) -> dict[str, Any]:
    """A row of an error file."""
    more = {name: getattr(letter, name) for name in ("source", "row", "answer", "model", "revision")}
    return {
        "id": letter.id,
        "custom_id": letter.id,
        "response": None,
        "error": {"code": letter.error, "message": letter.reason},
        **{name: value for name, value in more.items() if value},
    }


def _hash(completion: Completion) -> str:
    return content_id([completion.id, completion.text])


def _body(completion: Completion) -> dict[str, Any]:
    is_chat = completion.endpoint == CHAT_URL
    usage = completion.usage
    answers: Sequence[Completion | Choice] = completion.choices or [completion]
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{_hash(completion)}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": completion.model,
        "system_fingerprint": completion.revision or None,
        "choices": [_choice(index, answer, is_chat=is_chat) for index, answer in enumerate(answers)],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }


def _choice(index: int, answer: Completion | Choice, *, is_chat: bool) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    logprobs = None if answer.logprobs is None else (_of_chat if is_chat else _of_text)(answer.logprobs)
    return {
        "index": index,
        **({"message": message} if is_chat else {"text": answer.text}),
        "logprobs": logprobs,
        "finish_reason": _REASONS.get(answer.finish_reason, answer.finish_reason),
    }


def _of_chat(logprobs: list[TokenLogprob]) -> dict[str, Any]:
    return {
        "content": [
            {
                "token": each.token,
                "logprob": each.logprob,
                "bytes": None,
                "top_logprobs": [
                    {"token": top.token, "logprob": top.logprob, "bytes": None} for top in each.top_logprobs
                ],
            }
            for each in logprobs
        ],
        "refusal": None,
    }


def _of_text(logprobs: list[TokenLogprob]) -> dict[str, Any]:
    return {
        "tokens": [each.token for each in logprobs],
        "token_logprobs": [each.logprob for each in logprobs],
        "top_logprobs": [{top.token: top.logprob for top in each.top_logprobs} for each in logprobs],
        "text_offset": None,
    }

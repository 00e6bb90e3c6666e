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

from millrace.model_manager.wire.openai_answers import choice, usage

from ..elements.completions import Choice, Completion, DeadLetter, content_id
from ..elements.openai_batch import CHAT_URL, OF_THE_REQUEST


def openai_row(completion: Completion) -> dict[str, Any]:
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
    used = completion.usage
    answers: Sequence[Completion | Choice] = completion.choices or [completion]
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{_hash(completion)}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": completion.model,
        "system_fingerprint": completion.revision or None,
        "choices": [
            choice(index, answer.text, answer.finish_reason, answer.logprobs, is_chat=is_chat)
            for index, answer in enumerate(answers)
        ],
        "usage": usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens),
    }

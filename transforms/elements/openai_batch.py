"""Rows in OpenAI's batch format, `{"custom_id", "method", "url", "body"}`, as plain rows.

Source: https://platform.openai.com/docs/guides/batch. Chat completions (`messages`) and completions (`prompt`).
wire/openai_parameters.py says which parameters are taken.
A body parameter that would change the answer and that is not supported raises InvalidRequest by its name: none is
dropped silently. `model` is not used (the job's model answers) and is passed through, as are `method`, `url` and the
parameters that do not change the answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.openai_parameters import PARAMETERS, RIDE_ALONG, check_unsupported, sampling_fields
from millrace.model_manager.wire.sampling import SamplingParams

CHAT_URL = "/v1/chat/completions"
_URLS = (CHAT_URL, "/v1/completions")
_NAMES = frozenset((*SamplingParams.__struct_fields__, "sampling_params"))
_SHOWN = 80
_CONTENT = ("messages", "prompt")
_SUPPORTED = PARAMETERS | RIDE_ALONG | {*_CONTENT}
OF_THE_REQUEST = RIDE_ALONG | {"method", "url"}
"""Columns of a plain row that the request had for the service."""


def is_batch_row(row: dict[str, Any], prompt_column: str | None = None) -> bool:
    """Whether the row has this format: it has a body, which may be none that is taken, and no prompt beside it."""
    if "body" not in row or any(row.get(name) is not None for name in (prompt_column, *_CONTENT) if name):
        return False
    return "custom_id" in row or ("url" in row if isinstance(row["body"], dict) else row.get("url") in _URLS)


def endpoint_of(row: dict[str, Any]) -> str:
    """The endpoint that a row of this format names, or else means."""
    body = row["body"]
    return str(row.get("url") or _URLS[isinstance(body, dict) and "messages" not in body])


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """The same request as a plain row: custom_id, prompt or messages, sampling parameters, further columns.

    Only the body's parameters are the request's: what has the name of one beside it is none, see `beside`.
    """
    body = row["body"]
    if not isinstance(body, dict):
        raise InvalidRequest(f"body={msgspec.json.encode(body).decode()[:_SHOWN]}: takes an object")
    _check_endpoint(row)
    rest = {name: value for name, value in row.items() if name != "body" and name not in _NAMES}
    rest |= {name: body[name] for name in RIDE_ALONG & body.keys()}
    params = _params(body)
    content = {name: body[name] for name in _CONTENT if name in body}
    return rest | content | ({"sampling_params": params} if params else {})


def beside(row: dict[str, Any]) -> dict[str, Any]:
    """Columns beside the body that have names of sampling parameters, and ride along."""
    return {name: row[name] for name in row if name in _NAMES}


def _params(body: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters of a body; raises InvalidRequest for one that is not supported."""
    try:
        for name in sorted(body.keys() - _SUPPORTED):
            check_unsupported(name, body[name])
        return sampling_fields(body)
    except InvalidRequest as error:
        raise InvalidRequest(f"body.{error}") from None


def _check_endpoint(row: dict[str, Any]) -> None:
    if row.get("method") not in (None, "POST"):
        raise InvalidRequest(f"method={row['method']!r}: takes POST")
    if row.get("url") is not None and row["url"] not in _URLS:
        raise InvalidRequest(f"url={row['url']!r}: takes {' or '.join(_URLS)}")

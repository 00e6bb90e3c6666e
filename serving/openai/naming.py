"""Errors name what the client sent: our names of parameters, and those by which a body gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.model_manager.wire.openai_parameters import constraint_name

from ..http.http_errors import HttpError

_PROMPTS = {
    "/v1/chat/completions": "messages",
    "/v1/embeddings": "input",
    "/v1/responses": "input",
    "/tokenize": "messages",
    "/detokenize": "tokens",
}
"""Fields that may hold what is a prompt to us."""
_LENGTHS = frozenset(("max_completion_tokens", "max_output_tokens"))


def names_of(fields: Mapping[str, Any], route: str) -> dict[str, str]:
    """Our names of parameters that a body of that route has by others."""
    found = {}
    prompt = _PROMPTS.get(route, "prompt")
    if prompt in fields and "prompt" not in fields:
        found["prompt"] = prompt
    for length in _LENGTHS & fields.keys():
        found["max_tokens"] = length
    if fields.get("logprobs") is True and "top_logprobs" in fields:
        found["logprobs"] = "top_logprobs"
    name = constraint_name(fields) or _format_of_text(fields, route) or ("tools" if fields.get("tools") else None)
    return found if name is None else found | {"constraint": name}


def _format_of_text(fields: Mapping[str, Any], route: str) -> str | None:
    """The field by which a response's body says what the answer must be; None where it says nothing."""
    text = fields.get("text") if route == "/v1/responses" else None
    asked = text.get("format") if isinstance(text, Mapping) else None
    return "text.format" if isinstance(asked, Mapping) and asked.get("type") != "text" else None


def renamed(error: HttpError, names: Mapping[str, str]) -> HttpError:
    """The error with the client's name in the place of ours, in its sentence too where that begins with it."""
    ours = error.param or ""
    known = ours.partition(".")[0]
    if known not in names:
        return error
    theirs = names[known] if known == "constraint" else names[known] + ours.removeprefix(known)
    said = str(error)
    said = theirs + said.removeprefix(ours) if said.startswith((f"{ours}=", f"{ours}:", f"{ours} ")) else said
    return HttpError(error.status, said, error.kind, param=theirs, code=error.code, headers=error.headers)

"""`/openapi.json` and `/docs`: what the routes take, made of the structs that read their bodies. Both work offline."""

from __future__ import annotations

import html
from typing import Any

import msgspec

from millrace.model_manager.wire.sampling import SamplingParams

from .bodies import Body, ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody, GenerationBody, TokenizeBody

_BODIES: dict[str, tuple[type[Body], str]] = {
    "/v1/completions": (CompletionBody, "Complete prompts."),
    "/v1/chat/completions": (ChatBody, "Answer a conversation."),
    "/v1/embeddings": (EmbeddingBody, "Turn prompts into vectors."),
    "/tokenize": (TokenizeBody, "Token ids of a text or a conversation."),
    "/detokenize": (DetokenizeBody, "The text of token ids."),
}
_GETS = {
    "/v1/models": "The served model.",
    "/v1/models/{model}": "The served model, by its name.",
    "/health": "Status 200 while the server runs.",
    "/ready": "Status 200 once the model is loaded.",
    "/version": "The server's version.",
    "/metrics": "Metrics for Prometheus.",
}
_JSON = "application/json"


def openapi(version: str) -> dict[str, Any]:
    """The description, OpenAPI 3.1."""
    kinds = [kind for kind, _ in _BODIES.values()]
    _, schemas = msgspec.json.schema_components([*kinds, SamplingParams], ref_template="#/components/schemas/{name}")
    paths = {path: {"get": _operation(text)} for path, text in _GETS.items()}
    posts = {path: {"post": _operation(text) | _takes(kind)} for path, (kind, text) in _BODIES.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "millrace", "version": version},
        "paths": posts | paths,
        "components": {"schemas": schemas},
    }


def _operation(text: str) -> dict[str, Any]:
    return {"summary": text, "responses": {"200": {"description": "The answer."}}}


def _takes(kind: type[Body]) -> dict[str, Any]:
    """The body's fields; those of generating routes with the sampling parameters."""
    names = [kind.__name__, *(["SamplingParams"] if issubclass(kind, GenerationBody) else [])]
    schema = {"allOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}
    return {"requestBody": {"required": True, "content": {_JSON: {"schema": schema}}}}


def docs_page(version: str) -> str:
    """The routes as a page of HTML, without scripts."""
    rows = [("POST", path, text) for path, (_, text) in _BODIES.items()]
    rows += [("GET", path, text) for path, text in _GETS.items()]
    lines = "".join(
        f"<tr><td>{method}</td><td><code>{html.escape(path)}</code></td><td>{html.escape(text)}</td></tr>"
        for method, path, text in rows
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>millrace</title>"
        f"<h1>millrace {html.escape(version)}</h1><table>{lines}</table>"
        "<p><a href=openapi.json>openapi.json</a> says what each route takes.</p></html>"
    )

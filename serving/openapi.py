"""`/openapi.json` and `/docs`: what the routes take, made of the structs that read their bodies. Both work offline."""

from __future__ import annotations

import html
import re
from typing import Any

import msgspec

from millrace.model_manager.wire.openai_parameters import PARAMETERS
from millrace.model_manager.wire.sampling import SamplingParams

from .batches.routes import BatchBody
from .openai.bodies import ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody, GenerationBody, TokenizeBody
from .responses.conversation import ResponsesBody
from .tgi.bodies import GenerateBody

_BODIES: dict[str, tuple[type[msgspec.Struct], str]] = {
    "/v1/completions": (CompletionBody, "Complete prompts."),
    "/v1/chat/completions": (ChatBody, "Answer a conversation."),
    "/v1/embeddings": (EmbeddingBody, "Turn prompts into vectors."),
    "/v1/responses": (ResponsesBody, "Answer a conversation, in the form of OpenAI's responses."),
    "/v1/batches": (BatchBody, "Answer the requests of an uploaded file, beside the client."),
    "/generate": (GenerateBody, "Complete a prompt, in the form of Text Generation Inference."),
    "/generate_stream": (GenerateBody, "The same as a stream."),
    "/": (GenerateBody, "As /generate, where a list holds the answer; with stream as /generate_stream."),
    "/tokenize": (TokenizeBody, "Token ids of a text or a conversation."),
    "/detokenize": (DetokenizeBody, "The text of token ids."),
}
_GETS = {
    "/v1/models": "The served model.",
    "/v1/models/{model}": "The served model, by its name.",
    "/v1/files": "Uploaded files and the files of batches, in pages.",
    "/v1/files/{file_id}": "A file.",
    "/v1/files/{file_id}/content": "A file's content.",
    "/v1/batches": "Batches, in pages.",
    "/v1/batches/{batch_id}": "A batch as it is now.",
    "/info": "The served model, in the form of Text Generation Inference.",
    "/health": "Status 200 while the server runs.",
    "/ready": "Status 200 once the model is loaded.",
    "/version": "The server's version.",
    "/metrics": "Metrics for Prometheus.",
    "/": "What runs on this machine, as a page.",
    "/events": "The page's figures, as server-sent events.",
}
_OTHERS = {
    ("POST", "/v1/files"): "Upload a file: a form with file and purpose, which is batch.",
    ("DELETE", "/v1/files/{file_id}"): "Delete a file.",
    ("POST", "/v1/batches/{batch_id}/cancel"): "End a batch; what is answered is delivered.",
}
"""Routes whose body is none, or no JSON."""
_SAMPLED = (GenerationBody, ResponsesBody)
"""Bodies that take the sampling parameters too."""
_JSON = "application/json"
_SAMPLING = frozenset(SamplingParams.__struct_fields__)


def openapi(version: str) -> dict[str, Any]:
    """The description, OpenAPI 3.1."""
    kinds = [kind for kind, _ in _BODIES.values()]
    _, schemas = msgspec.json.schema_components([*kinds, SamplingParams], ref_template="#/components/schemas/{name}")
    del schemas["SamplingParams"]["additionalProperties"]  # bodies have more
    schemas["SamplingParams"]["properties"] |= {name: {} for name in sorted(PARAMETERS) if name not in _SAMPLING}
    paths: dict[str, dict[str, Any]] = {
        path: {"post": _operation(text) | _takes(kind)} for path, (kind, text) in _BODIES.items()
    }
    others = {("GET", path): text for path, text in _GETS.items()} | _OTHERS
    for (method, path), text in others.items():
        paths.setdefault(path, {})[method.lower()] = _operation(text) | _in_path(path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "millrace", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(text: str) -> dict[str, Any]:
    return {"summary": text, "responses": {"200": {"description": "The answer."}}}


def _in_path(path: str) -> dict[str, Any]:
    """What stands in braces in a path."""
    names = re.findall(r"\{(\w+)\}", path)
    found = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {"parameters": found} if found else {}


def _takes(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The body's fields; those of generating routes with the sampling parameters."""
    names = [kind.__name__, *(["SamplingParams"] if issubclass(kind, _SAMPLED) else [])]
    schema = {"allOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}
    return {"requestBody": {"required": True, "content": {_JSON: {"schema": schema}}}}


def docs_page(version: str) -> str:
    """The routes as a page of HTML, without scripts."""
    rows = [("POST", path, text) for path, (_, text) in _BODIES.items()]
    rows += [("GET", path, text) for path, text in _GETS.items()]
    rows += [(method, path, text) for (method, path), text in _OTHERS.items()]
    lines = "".join(
        f"<tr><td>{method}</td><td><code>{html.escape(path)}</code></td><td>{html.escape(text)}</td></tr>"
        for method, path, text in rows
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>millrace</title>"
        f"<h1>millrace {html.escape(version)}</h1><table>{lines}</table>"
        "<p><a href=openapi.json>openapi.json</a> says what each route takes.</p></html>"
    )

"""`/openapi.json` and `/docs`: what the routes take, made of the structs that read their bodies. Both work offline."""

from __future__ import annotations

import html
import re
from typing import Any

import msgspec

from .batches.batch_routes import BatchBody
from .openai.bodies import ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody, TokenizeBody
from .responses.conversation import ResponsesBody
from .schemas import UPLOAD, ref, schemas
from .tgi.generate_body import GenerateBody

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
    "/v1/models": "The served model and its adapters.",
    "/v1/models/{model}": "One of them, by its name.",
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
_ANSWERS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/files"): ref("StoredFile"),
    ("GET", "/v1/files/{file_id}"): ref("StoredFile"),
    ("POST", "/v1/batches"): ref("Batch"),
    ("GET", "/v1/batches/{batch_id}"): ref("Batch"),
    ("POST", "/v1/batches/{batch_id}/cancel"): ref("Batch"),
}
"""Answers that are a struct as it is."""
_TGI = frozenset(("/generate", "/generate_stream", "/", "/info"))
"""Errors there have TGI's form."""
_JSON = "application/json"


def openapi(version: str) -> dict[str, Any]:
    """The description, OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for path, (kind, text) in _BODIES.items():
        paths[path] = {"post": _operation("POST", path, text) | _takes(_JSON, ref(kind.__name__))}
    others = {("GET", path): text for path, text in _GETS.items()} | _OTHERS
    for (method, path), text in others.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, text) | _in_path(path)
    paths["/v1/files"]["post"] |= _takes("multipart/form-data", UPLOAD)
    return {
        "openapi": "3.1.0",
        "info": {"title": "millrace", "version": version},
        "paths": paths,
        "components": {"schemas": schemas()},
    }


def _operation(method: str, path: str, text: str) -> dict[str, Any]:
    answer = _ANSWERS.get((method, path))
    content = {} if answer is None else {"content": {_JSON: {"schema": answer}}}
    errors = {"description": "An error.", "content": {_JSON: {"schema": ref("Error")}}}
    responses = {"200": {"description": "The answer.", **content}} | ({} if path in _TGI else {"default": errors})
    return {"summary": text, "responses": responses}


def _in_path(path: str) -> dict[str, Any]:
    """What stands in braces in a path."""
    names = re.findall(r"\{(\w+)\}", path)
    found = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {"parameters": found} if found else {}


def _takes(form: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A body of that media type."""
    return {"requestBody": {"required": True, "content": {form: {"schema": schema}}}}


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

"""JSON Schemas of bodies and answers, made of the structs that read and hold them and their docstrings."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.field_docs import field_docs
from millrace.model_manager.wire.openai_parameters import RIDE_ALONG, BesideSampling
from millrace.model_manager.wire.sampling import SamplingParams, range_of

from .batches.batch_routes import BatchBody
from .batches.record import LEFT_OUT, Batch, Counts, Problem
from .files.file_store import StoredFile
from .openai.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    GenerationBody,
    StreamOptions,
    TokenizeBody,
)
from .openai.completions import MAX_TOKENS
from .openai.parameters import TEMPERATURE
from .responses.conversation import REFUSED, ResponsesBody
from .tgi.generate_body import GenerateBody, GenerateParameters, GrammarType

BODIES = (
    CompletionBody,
    ChatBody,
    EmbeddingBody,
    ResponsesBody,
    BatchBody,
    GenerateBody,
    TokenizeBody,
    DetokenizeBody,
)
_PARTS = (StreamOptions, GenerateParameters, GrammarType, Constraint)
_ANSWERS = (StoredFile, Batch, Counts, Problem)
_SAMPLED = (GenerationBody, ResponsesBody)
"""Bodies that take the sampling parameters too."""
_NOT_TAKEN = frozenset(("adapter",))
"""Parameters of rows that no body may have."""
_DEFAULTS: dict[str, Any] = {"temperature": TEMPERATURE}
"""What a body has by default, where rows have something else."""
_NO_EFFECT = {"description": "No effect: it concerns a service alone."}
_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string", "description": "What is wrong, in a sentence."},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field that is wrong."},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
UPLOAD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "A JSON object a line."},
        "purpose": {"const": "batch", "description": "What the file is for."},
    },
    "required": ["file", "purpose"],
}
"""The form of an upload, which is no JSON."""


def ref(name: str) -> dict[str, str]:
    """A schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def schemas() -> dict[str, Any]:
    """All schemas, by the names of their structs."""
    kinds = (*BODIES, *_PARTS, *_ANSWERS, SamplingParams, BesideSampling)
    _, found = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for kind in kinds:
        _describe(found[kind.__name__], kind)
    sampling, beside = (found.pop(each.__name__)["properties"] for each in (SamplingParams, BesideSampling))
    for name in sampling:
        sampling[name] |= {"default": _DEFAULTS[name]} if name in _DEFAULTS else {}
        sampling[name]["description"] += f" Takes {range_of(name)}." if range_of(name) else ""
    for kind in BODIES:
        if issubclass(kind, Body):
            found[kind.__name__]["properties"] = _all_fields(
                kind, sampling | beside, found[kind.__name__]["properties"]
            )
    found["CompletionBody"]["properties"]["max_tokens"] = beside["max_tokens"] | {"default": MAX_TOKENS}
    _show(found["StoredFile"], object={"const": "file"}, status={"const": "processed"}, expires_at={"type": "null"})
    errors = {"type": ["object", "null"], "properties": {"data": {"type": "array", "items": ref("Problem")}}}
    _show(found["Batch"], object={"const": "batch"}, errors=errors)
    return found | {"Error": _ERROR}


def _show(schema: dict[str, Any], **more: Any) -> None:
    """A record as clients see it."""
    shown = {name: value for name, value in schema["properties"].items() if name not in LEFT_OUT}
    schema |= {"properties": shown | more, "required": [each for each in schema["required"] if each in shown]}


def _all_fields(kind: type[msgspec.Struct], parameters: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    left_out = {*_NOT_TAKEN, *(REFUSED if kind is ResponsesBody else ())}
    taken = {name: value for name, value in parameters.items() if name not in left_out}
    return (dict.fromkeys(sorted(RIDE_ALONG), _NO_EFFECT)) | (taken if issubclass(kind, _SAMPLED) else {}) | own


def _describe(schema: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Add the docstrings of the struct's fields, also of those that it inherits."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is not msgspec.Struct and issubclass(base, msgspec.Struct):
            docs |= {name: text for name, text in field_docs(base).items() if text}
    for name in docs.keys() & schema["properties"].keys():
        schema["properties"][name]["description"] = docs[name]

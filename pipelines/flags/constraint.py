"""`--constraint`: a JSON text or a file, read as a constraint's fields."""

from __future__ import annotations

from typing import Any

from millrace.model_manager.wire.constraint import is_schema
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.json_text import json_value

from .named_files import read_text

METAVAR = "JSON|FILE"
HELP = (
    "What the output must be: a constraint (a JSON object with regex, json_schema, json, grammar or choice) or a JSON "
    "Schema, as JSON text or in a file (local or gs://); a .lark file holds a grammar."
)
_TAKES = "takes JSON that begins with {, or a file: a constraint or a JSON Schema as JSON, or a grammar in a .lark file"


def constraint_fields(given: str) -> dict[str, Any]:
    """The fields; raises ConfigError, one sentence, for a file or a text that holds no object."""
    if _is_object(given):
        return _fields("--constraint", given)
    text = read_text("--constraint", given, f"; {_TAKES}")
    if given.lower().endswith(".lark"):
        return {"grammar": text}
    if not _is_object(text):
        raise ConfigError(f"--constraint {given}: {_TAKES}, got {text[:40]!r}")
    return _fields(f"--constraint {given}", text)


def told(given: str, reason: str) -> str:
    """What is wrong with the constraint, `constraint.regex: …`, by its flag and its file."""
    if _is_object(given):
        return f"--{reason}"
    return f"--constraint {given}: {reason.removeprefix('constraint').removeprefix('.').removeprefix(': ')}"


def _is_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _fields(where: str, text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json_value(text)
    except ValueError as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from None
    return {"json_schema": found} if is_schema(found) else found

"""Flags that name files: a file's text, and `--constraint`, which takes JSON or a file, as a constraint's fields."""

from __future__ import annotations

from typing import Any

from apache_beam.io.filesystem import BeamIOError

from millrace.model_manager.wire.constraint import is_schema
from millrace.model_manager.wire.errors import ConfigError, MillraceError
from millrace.model_manager.wire.json_text import json_value
from millrace.transforms.files.object_reads import open_file

CONSTRAINT_METAVAR = "JSON|FILE"
CONSTRAINT_HELP = (
    "What the output must be: a constraint (a JSON object with regex, json_schema, json, grammar or choice) or a JSON "
    "Schema, as JSON text or in a file (local, gs:// or s3://); a .lark file holds a grammar."
)
_TAKES = "takes JSON that begins with {, or a file: a constraint or a JSON Schema as JSON, or a grammar in a .lark file"


def read_text(flag: str, path: str, hint: str = "") -> str:
    """A file's text, from any file system that Beam knows, without a byte order mark.

    `hint`: `; takes …`, for the error if there is no such file, or a folder.
    """
    try:
        with open_file(path) as stream:
            return stream.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{flag} {path}: no such file{hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{flag} {path}: is a folder{hint or '; takes a file'}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {path}: takes UTF-8, got another byte at {error.start}") from None
    except (OSError, BeamIOError, MillraceError, ValueError) as error:
        raise ConfigError(f"{flag} {path}: {error}") from None


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


def told_of_constraint(given: str, reason: str) -> str:
    """What is wrong with the constraint, `constraint.regex: …`, by its flag and, if it is in one, its file."""
    where = "--constraint" if _is_object(given) else f"--constraint {given}"
    return f"{where}: {reason.removeprefix('constraint').removeprefix('.').removeprefix(': ')}"


def _is_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _fields(where: str, text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json_value(text)
    except ValueError as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from None
    return {"json_schema": found} if is_schema(found) else found

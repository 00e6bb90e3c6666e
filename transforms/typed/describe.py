"""What a user gives as a type → its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.model_manager.wire.errors import ConfigError

from .json_schemas import record_of_schema
from .python_types import is_record_class, record_of_class
from .shapes import Record


def record_of(given: Any) -> Record:
    """Raises ConfigError, naming the field where it is one, for what is no type of rows."""
    if isinstance(given, dict | str | Path):
        return record_of_schema(given)
    if is_record_class(given):
        return record_of_class(given)
    raise ConfigError(
        f"{getattr(given, '__name__', given)!r}: takes a dataclass, a NamedTuple, a pydantic model, or a JSON Schema"
    )

"""Rows of a value with its id, the model's confidence, where its pieces stand, and its input row's columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from apache_beam.portability.api import schema_pb2
from apache_beam.typehints import schemas

from ..elements.task_results import Extracted
from .beam_schemas import beam_schema, element_type, row_class, schema_id
from .leaves import bare
from .shapes import Member, Record


class SpanAt(NamedTuple):
    """Characters of the document: from `start` up to `end`, which is not included."""

    start: int
    end: int


_SPAN_AT = Record("SpanAt", tuple(Member(name, bare("integer"), name) for name in SpanAt._fields), SpanAt)


class Details:
    """Makes rows of id, value, confidence, confidences, spans, columns, model and revision."""

    def __init__(self, record: Record) -> None:
        self._record = record

    @property
    def element_type(self) -> Any:
        """A NamedTuple with a Beam schema."""
        return _class_of(self._record)

    def row(self, value: Any, found: Extracted) -> Any:
        """The columns are JSON text: what they hold is the source's affair."""
        return self.element_type(
            id=found.id,
            value=value,
            confidence=found.confidence,
            confidences=found.confidences,
            spans={path: SpanAt(*where) for path, where in found.spans.items()},
            columns=msgspec.json.encode(found.columns).decode(),
            model=found.model,
            revision=found.revision,
        )


@lru_cache(maxsize=256)
def _class_of(record: Record) -> Any:
    value = element_type(record)
    made = schemas.named_tuple_from_schema(_schema(record))
    made.__annotations__["value"] = value  # Beam finds none for a class in its registry
    return made


def _schema(record: Record) -> schema_pb2.Schema:
    value = schema_pb2.FieldType(row_type=schema_pb2.RowType(schema=beam_schema(record)))
    types: dict[str, Any] = {
        "id": str,
        "value": value,
        "confidence": float,
        "confidences": Mapping[str, float],
        "spans": Mapping[str, row_class(_SPAN_AT)],  # type: ignore[misc]
        "columns": str,
        "model": str,
        "revision": str,
    }
    made = schema_pb2.Schema(fields=[schemas.schema_field(name, given) for name, given in types.items()])
    made.id = schema_id(b"details of " + beam_schema(record).id.encode())
    return made

"""WriteTable: rows with a Beam schema → Parquet, whatever their schema has.

Beam's own WriteToParquet takes flat rows of strings, numbers and booleans. This takes dates, times, decimals, rows
within rows and lists of them too, as Extract gives them.
"""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.parquetio import WriteToParquet
from apache_beam.typehints import schemas
from apache_beam.utils.timestamp import Timestamp

from millrace.model_manager.wire.errors import ConfigError

from .arrow_schema import arrow_schema, exact
from .arrow_values import arrow_members


class WriteTable(beam.PTransform):
    """Parquet files of the rows, `PREFIX-00000-of-00001.parquet` and so on; gives the files' names."""

    def __init__(
        self, prefix: str, *, schema: pa.Schema | None = None, num_shards: int = 0, codec: str = "zstd"
    ) -> None:
        """`schema`: of the files, where it is not to follow from the rows': some columns, or others' types.

        `num_shards`: by default as many as the runner likes.
        """
        super().__init__()
        self._prefix = prefix
        self._schema = schema
        self._num_shards = num_shards
        self._codec = codec

    def expand(self, rows: Any) -> Any:
        schema = self._schema or table_schema(rows.element_type)
        write = WriteToParquet(
            self._prefix,
            schema,
            codec=self._codec,
            file_name_suffix=".parquet",
            num_shards=self._num_shards,
        )
        return rows | "As dicts" >> beam.Map(table_row, schema) | "Write" >> write


def table_schema(rows: Any) -> pa.Schema:
    """Arrow's schema of rows of an element type. Raises ConfigError, naming the field where it is one."""
    kind = schemas.typing_to_runner_api(rows)
    if kind.WhichOneof("type_info") != "row_type":
        raise ConfigError(f"elements of type {rows}: takes rows with a schema")
    return arrow_schema(kind.row_type.schema)


def table_row(row: Any, schema: pa.Schema) -> dict[str, Any]:
    """A row as the dicts and lists that Arrow reads. Raises ConfigError for a decimal that would be rounded."""
    return arrow_members(row, schema, table_value)


def table_value(value: Any, field: pa.Field) -> Any:
    """A value that holds no others, as Arrow reads it."""
    if value is not None and pa.types.is_decimal(field.type):
        return exact(value, field)
    return value.to_utc_datetime(has_tz=True) if isinstance(value, Timestamp) else value

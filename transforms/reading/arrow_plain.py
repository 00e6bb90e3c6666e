"""Arrow values → Python values that JSON can hold, or become in msgspec. Knows no rows' meaning.

Most columns convert at once. Where Python has no such value (the year 10000, a time zone that is unknown here), each
value of the column is converted by itself, and what has no other form is a text that says the same. So this walks
Arrow's own values; writing/arrow_values.py walks Python's values along a schema, on the way to a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400


class Unconvertible(ValueError):
    """A value that no JSON can hold; the text says why."""


def encoded(value: Any) -> bytes:
    """JSON: dates and times in ISO 8601, bytes in base64, decimals as text, NaN and infinity as null."""
    return msgspec.json.encode(value, enc_hook=_text_of)


def plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch whose columns' names differ; a value that has no form is an Unconvertible."""
    columns = [_column(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _column(column: pa.Array) -> list[Any]:
    try:
        values = column.to_pylist(maps_as_pydicts="lossy")
        encoded(values)
    except Exception:  # Arrow raises what it meets: OverflowError, a time zone's, a dictionary's, …
        return [_plain_or_error(value) for value in column]
    return list(values)


def _plain_or_error(value: pa.Scalar) -> Any:
    try:
        return _plain(value)
    except UnicodeDecodeError:
        return Unconvertible(f"{value.type}: not UTF-8")
    except Exception as error:
        return Unconvertible(" ".join(f"{value.type}: {error}".split()))


def _plain(value: pa.Scalar) -> Any:
    try:
        found = value.as_py(maps_as_pydicts="lossy")
        encoded(found)
    except Exception:
        return _in_parts(value)
    return found


def _in_parts(value: pa.Scalar) -> Any:
    """A value that does not convert as a whole."""
    kind = value.type
    if pa.types.is_struct(kind):
        return _struct(value)
    if pa.types.is_map(kind):
        return _map(value)
    if isinstance(value, pa.ListScalar):  # of any kind of list
        return [_plain(each) for each in value.values]
    if isinstance(value, pa.DictionaryScalar | pa.ExtensionScalar | pa.UnionScalar | pa.RunEndEncodedScalar):
        return _plain(value.value)
    return _text(value)


def _struct(value: pa.StructScalar) -> dict[str, Any]:
    names = [field.name for field in value.type]
    if len({*names}) < len(names):
        raise Unconvertible("two fields have one name")
    return {name: _plain(each) for name, each in value.items()}


def _map(value: pa.MapScalar) -> Any:
    """A map as a dict; as a list of its entries if keys have parts of their own."""
    entries = [(_plain(each["key"]), _plain(each["value"])) for each in value.values]
    if any(isinstance(key, dict | list) for key, _ in entries):
        return [{"key": key, "value": each} for key, each in entries]
    return dict(entries)


def _text(value: pa.Scalar) -> str:
    kind = value.type
    if pa.types.is_timestamp(kind):
        moment = value.cast(pa.timestamp(kind.unit))  # of UTC, where the type has a time zone
        return _rendered(moment).replace(" ", "T") + ("Z" if kind.tz else "")
    if pa.types.is_duration(kind):
        return _span(value.cast(pa.int64()).as_py(), _PER_SECOND[kind.unit])
    return _rendered(value)


def _rendered(value: pa.Scalar) -> str:
    return str(value.cast(pa.string()).as_py())


def _span(count: int, per_second: int) -> str:
    """ISO 8601, as in P1DT2.5S."""
    seconds, fraction = divmod(abs(count), per_second)
    days, seconds = divmod(seconds, _DAY)
    digits = f"{fraction + per_second}"[1:].rstrip("0")
    time = f"T{seconds}{'.' * bool(digits)}{digits}S" if seconds or digits or not days else ""
    return f"{'-' * (count < 0)}P{f'{days}D' * bool(days)}{time}"


def _text_of(value: Any) -> str:
    """ISO 8601 of what has it (times of nanoseconds)."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)

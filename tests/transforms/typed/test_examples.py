"""Examples: null where null is legal, and nothing where nothing is."""

from typing import Any

import pytest

from millrace import Extract
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.examples import example_answer
from millrace.transforms.typed.values import value_of

ANY: Any = {"type": ["object", "null", "integer"]}
SOME: Any = {"type": ["object", "integer"]}
DAY: Any = {"type": ["string", "null"], "format": "date"}


def schema(given: Any, required: bool) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": given}, "required": ["a"] if required else []}


@pytest.mark.parametrize(
    ("given", "required", "example", "written"),
    [
        (ANY, True, {"a": None}, '{"a": null}'),
        (ANY, False, {"a": None}, '{"a": null}'),
        (ANY, False, {}, "{}"),
        ({}, True, {"a": None}, '{"a": null}'),
        ({"anyOf": [{}, {"type": "null"}]}, True, {"a": None}, '{"a": null}'),
        (SOME, False, {"a": None}, "{}"),
        ({"anyOf": [{"type": "object"}, {"type": "array"}]}, False, {"a": None}, "{}"),
        ({"enum": [1, "x"]}, False, {"a": None}, "{}"),
        ({"enum": [1, None, "x"]}, False, {"a": None}, '{"a": null}'),
        (DAY, True, {"a": None}, '{"a": null}'),
        (DAY, True, {}, '{"a": null}'),
        (DAY, False, {"a": None}, '{"a": null}'),
        (DAY, False, {}, "{}"),
        ({"type": "string"}, False, {"a": None}, "{}"),
    ],
)
def test_null_is_written_where_it_is_meant(given: Any, required: bool, example: Any, written: str) -> None:
    rows = schema(given, required)
    assert example_answer(record_of(rows), example) == written
    assert f"JSON:{written}\n" in str(Extract(rows, "any", examples=[("x", example)]).prompt("y"))


@pytest.mark.parametrize("given", [ANY, DAY])
def test_a_row_has_none_for_what_is_missing(given: Any) -> None:
    record = record_of(schema(given, required=False))
    assert example_answer(record, value_of(record, {})) == "{}"


@pytest.mark.parametrize(("given", "example"), [(ANY, {}), (SOME, {"a": None}), ({"type": "string"}, {"a": None})])
def test_what_has_to_be_there_and_is_not_is_told(given: Any, example: Any) -> None:
    with pytest.raises(ConfigError, match=r"^example: Row has no a: "):
        example_answer(record_of(schema(given, required=True)), example)

"""What a schema would cost is told in time that grows as the schema does."""

import time
from typing import Any

import pytest

from millrace.model_manager.grammars.llguidance_schemas import prepared
from millrace.model_manager.grammars.schema_cost import referred
from millrace.model_manager.wire.constraint import Constraint

MOST_SECONDS = 5.0
"""Seconds of processor time. Each schema took longer when a part was visited once for each reference to it."""
EMPTY: list[dict[str, Any]] = [{} for _ in range(9000)]
TARGETS: dict[str, Any] = {
    "a list": EMPTY,
    "alternatives": {"anyOf": EMPTY},
    "properties": {"anyOf": [{"properties": {str(name): {} for name in range(1900)}} for _ in range(3)]},
}


@pytest.mark.parametrize("target", TARGETS)
def test_what_many_references_name_in_many_ways_is_looked_at_once(target: str) -> None:
    references = [{"items": {"$ref": f"#{number}/$defs/x"}} for number in range(5000)]
    schema = {"$defs": {"x": TARGETS[target]}, "items": {"anyOf": references}}
    Constraint(json_schema=schema)
    began = time.process_time()
    prepared(schema)
    assert time.process_time() - began < MOST_SECONDS


def test_a_place_in_a_list_has_few_digits() -> None:
    assert referred({"anyOf": [{"a": 1}]}, "#/anyOf/0") == {"a": 1}
    assert referred({"anyOf": [{"a": 1}]}, "#/anyOf/" + "0" * 5000) is None

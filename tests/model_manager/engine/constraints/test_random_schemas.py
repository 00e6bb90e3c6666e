"""Under any schema of what is supported: what validates may be written, nothing else, and what is written validates."""

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from tests.model_manager.engine.constraints.instances_written import takes
from tests.model_manager.engine.constraints.random_outputs import COMPILER, random_output
from tests.model_manager.engine.constraints.random_schemas import scalar_schemas, schemas, values
from tests.model_manager.engine.constraints.schema_corpus import exactly, validator

FEW = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=120)


def compiled(schema: dict[str, Any]) -> Grammar:
    """Its grammar; passes over a schema that nothing satisfies."""
    try:
        return COMPILER.compile(Constraint(json_schema=schema))
    except InvalidRequest as error:
        assume("something satisfies" not in str(error))
        raise


def check_outputs(schema: dict[str, Any], seed: int) -> None:
    text = random_output(compiled(schema), seed, 64)
    assume(text is not None)  # an output to whose end no way is found fails as a whole
    assert text is not None
    assert [error.message for error in validator(schema).iter_errors(exactly(text))] == [], text


def check_value(schema: dict[str, Any], value: Any) -> None:
    text = json.dumps(value)
    assume("\\n" not in text)  # before which Python's $ matches too
    assume(not re.search(r"\\u00(0[0-7bef]|1|7f)", text))  # control characters that have no short escape
    assert takes(compiled(schema), value) == validator(schema).is_valid(exactly(text)), text


@FEW
@given(schemas, st.integers(0, 2**32))
def test_what_is_generated_validates(schema: dict[str, Any], seed: int) -> None:
    check_outputs(schema, seed)


@FEW
@given(schemas, values)
def test_a_value_may_be_written_where_it_validates_and_nowhere_else(schema: dict[str, Any], value: Any) -> None:
    check_value(schema, value)


@FEW
@given(scalar_schemas, st.data())
def test_a_value_made_for_the_schema_may_be_written(schema: dict[str, Any], data: st.DataObject) -> None:
    """Scalars: hypothesis-jsonschema 0.23 draws no objects with today's hypothesis."""
    compiled(schema)
    check_value(schema, data.draw(from_schema(schema)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@MANY
@given(schemas, st.integers(0, 2**32), values)
def test_the_same_of_many_schemas(schema: dict[str, Any], seed: int, value: Any) -> None:
    check_outputs(schema, seed)
    check_value(schema, value)

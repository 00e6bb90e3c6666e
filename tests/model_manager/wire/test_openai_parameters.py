"""Parameters of OpenAI's bodies, and of vLLM's, as fields of SamplingParams."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.openai_parameters import sampling_fields
from millrace.model_manager.wire.sampling import SamplingParams


@pytest.mark.parametrize(
    ("body", "constraint"),
    [
        ({"guided_json": {"type": "string"}}, {"json_schema": {"type": "string"}}),
        ({"guided_json": '{"type": "string"}'}, {"json_schema": {"type": "string"}}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "start: /a/"}, {"grammar": "start: /a/"}),
        ({"structured_outputs": {"json": {"type": "string"}}}, {"json_schema": {"type": "string"}}),
        ({"structured_outputs": {"regex": "a+", "choice": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"json_object": True}}, {"json": True}),
        (
            {"structured_outputs": {"regex": "a+", "json_object": False, "disable_any_whitespace": False}},
            {"regex": "a+"},
        ),
        (
            {
                "structured_outputs": {
                    "choice": ["a"],
                    "disable_fallback": False,
                    "disable_additional_properties": False,
                    "whitespace_pattern": None,
                    "structural_tag": None,
                }
            },
            {"choice": ["a"]},
        ),
    ],
)
def test_constraints_by_vllms_names_are_ours(body: dict[str, Any], constraint: dict[str, Any]) -> None:
    params = SamplingParams.parse(sampling_fields(body))
    assert params == SamplingParams.parse({"constraint": constraint})


@pytest.mark.parametrize(
    "body",
    [
        {"guided_regex": "a", "guided_json": {}},
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        {"structured_outputs": {"regex": "a"}, "constraint": {"regex": "a"}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"structured_outputs": {"jsn": {}}},
        {"structured_outputs": {"regex": "a", "jsn": False}},
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        {"structured_outputs": {"json_object": False}},
        {"structured_outputs": 5},
    ],
)
def test_more_than_one_constraint_or_none_that_is_known_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="|".join(body)):
        sampling_fields(body)

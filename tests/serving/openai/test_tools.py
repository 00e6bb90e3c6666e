"""Calls of functions: read piece by piece as they are generated, however the text is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.errors import InvalidRequest
from millrace.serving.openai.plain_messages import plain_messages
from millrace.serving.openai.tools import Calling, CallText, Function, calling_of

FUNCTION = Function("f")
TOOL = {"type": "function", "function": {"name": "f"}}
ARGUMENTS = st.dictionaries(st.text(), st.text() | st.integers() | st.dictionaries(st.text(), st.none()))


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at these places."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


@given(ARGUMENTS, st.lists(st.integers(0)), st.text(min_size=1))
def test_the_arguments_of_a_call_joined_are_its_own(arguments: dict[str, object], cuts: list[int], name: str) -> None:
    own = json.dumps(arguments)
    read = CallText(Calling([FUNCTION], "required"))
    said = [read.add(each) for each in pieces(f'{{"name": {json.dumps(name)}, "arguments": {own}}}', cuts)]
    assert (read.name, "".join(said) + read.end()) == (name, own)


@given(ARGUMENTS, st.lists(st.integers(0)))
def test_the_answer_of_a_named_function_is_its_arguments(arguments: dict[str, object], cuts: list[int]) -> None:
    own = json.dumps(arguments)
    read = CallText(Calling([FUNCTION], "named"))
    assert "".join(map(read.add, pieces(own, cuts))) + read.end() == own
    assert read.name == "f"


def test_with_auto_what_does_not_begin_as_a_call_is_text() -> None:
    read = CallText(Calling([FUNCTION], "auto"))
    assert not read.is_call
    read.add("Hello {")
    assert not read.is_call


@pytest.mark.parametrize(
    ("tools", "choice", "way"),
    [
        ([], None, "none"),
        ([], "auto", "none"),
        ([TOOL], None, "auto"),
        ([TOOL], "none", "none"),
        ([TOOL], "required", "required"),
        ([TOOL], {"type": "function", "function": {"name": "f"}}, "named"),
    ],
)
def test_a_choice_says_what_may_be_called(tools: list[object], choice: object, way: str) -> None:
    assert calling_of(tools, choice).way == way


@pytest.mark.parametrize(
    ("tools", "choice"), [([], "required"), ([TOOL], "g"), ([TOOL], {"function": {"name": "g"}}), ([5], None)]
)
def test_a_choice_that_cannot_be_is_refused(tools: list[object], choice: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^tool"):
        calling_of(tools, choice)


def test_there_are_as_many_tools_as_openai_takes_with_a_name_each() -> None:
    tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(128)]
    assert len(calling_of(tools, "required").functions) == 128
    with pytest.raises(InvalidRequest, match=r"^tools: takes at most 128 functions, got 129"):
        calling_of([*tools, TOOL], "required")
    with pytest.raises(InvalidRequest, match=r"^tools\[127\]\.function\.name='f0'"):
        calling_of([*tools[:127], tools[0]], "required")


def test_null_is_as_if_absent_in_a_function() -> None:
    given = {"name": "f", "description": None, "parameters": None, "strict": None}
    found = calling_of([{"type": "function", "function": given}], "required")
    assert found.instruction() == calling_of([TOOL], "required").instruction()


def test_the_model_is_told_of_functions_in_their_own_letters() -> None:
    parameters = {"type": "object", "properties": {"città": {"enum": ["Roma", "東京"]}}}
    function = {"name": "météo", "description": "Le temps qu’il fait, 天気", "parameters": parameters}
    told = calling_of([{"type": "function", "function": function}], "required").instruction()
    assert json.loads(told.splitlines()[-1]) == function
    assert all(word in told for word in ("météo", "qu’il", "天気", "città", "東京"))
    call = {"id": "1", "type": "function", "function": {"name": "météo", "arguments": "{}"}}
    (said,) = plain_messages([{"role": "assistant", "tool_calls": [call]}])
    assert said["content"] == '{"name": "météo", "arguments": {}}'


def test_parameters_of_any_depth_are_told_to_be_too_deep() -> None:
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"not": deep}
    with pytest.raises(InvalidRequest, match="nested too deep"):
        Calling([Function("f", parameters=deep)], "required").constraint()

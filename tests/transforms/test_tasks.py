"""A task's settings are the same wherever they are given: in Python, on a command line, in rows of other languages."""

import inspect
from typing import Any, get_type_hints

import msgspec
import pytest

from millrace import Classify, Embed, Extract, Generate, Score
from millrace.model_manager.wire.field_docs import field_docs
from millrace.transforms.beam_rows import row_transforms
from millrace.transforms.tasks import (
    ClassifySettings,
    EmbedSettings,
    ExtractSettings,
    GenerateSettings,
    ScoreSettings,
    TaskSettings,
)

TASKS = [
    (Generate, GenerateSettings),
    (Score, ScoreSettings),
    (Embed, EmbedSettings),
    (Extract, ExtractSettings),
    (Classify, ClassifySettings),
]


NO_SETTINGS = {"model", "params", "settings", "max_tokens", "text_column"}
"""Arguments that all transforms take, and those that flags have as sampling parameters and as columns of the input."""


@pytest.mark.parametrize(("transform", "settings"), TASKS)
def test_a_transform_takes_the_settings_of_its_task_with_their_types_and_defaults(
    transform: type, settings: type[TaskSettings]
) -> None:
    arguments = inspect.signature(transform).parameters
    assert {*arguments} - NO_SETTINGS == {*settings.__struct_fields__}
    taken, said = get_type_hints(transform.__init__), get_type_hints(settings)  # type: ignore[misc]
    for field in msgspec.structs.fields(settings):
        default = inspect.Parameter.empty if field.default is msgspec.NODEFAULT else field.default
        assert arguments[field.name].default == default, field.name
        assert said[field.name] in (taken[field.name], Any), field.name


@pytest.mark.parametrize(("transform", "settings"), TASKS)
def test_a_transform_says_of_each_setting_what_the_flag_says(transform: type, settings: type[TaskSettings]) -> None:
    said = " ".join((transform.__init__.__doc__ or "").split())  # type: ignore[misc]
    for name, text in field_docs(settings).items():
        assert f"`{name}`: {text}" in said


@pytest.mark.parametrize(("transform", "settings"), TASKS)
def test_every_setting_is_one_of_rows_unless_rows_have_it_another_way(
    transform: type, settings: type[TaskSettings]
) -> None:
    of_rows = getattr(row_transforms, f"{transform.__name__}Rows")._settings_type
    another_way = {"stateful", "continuations_column", "rows"}
    assert {*settings.__struct_fields__} - another_way <= {*of_rows.__struct_fields__}

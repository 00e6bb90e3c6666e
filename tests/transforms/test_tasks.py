"""A task's settings are the same wherever they are given: in Python, on a command line, in rows of other languages."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millrace import Classify, Embed, Extract, Generate, Score
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


@pytest.mark.parametrize(("transform", "settings"), TASKS)
def test_every_setting_is_an_argument_with_the_same_default(
    transform: Callable[..., Any], settings: type[TaskSettings]
) -> None:
    arguments = inspect.signature(transform).parameters
    for field in msgspec.structs.fields(settings):
        default = inspect.Parameter.empty if field.default is msgspec.NODEFAULT else field.default
        assert arguments[field.name].default == default, field.name


@pytest.mark.parametrize(("transform", "settings"), TASKS)
def test_every_setting_is_one_of_rows_unless_rows_have_it_another_way(
    transform: type, settings: type[TaskSettings]
) -> None:
    of_rows = getattr(row_transforms, f"{transform.__name__}Rows")._settings_type
    another_way = {"stateful", "continuations_column", "rows"}
    assert {*settings.__struct_fields__} - another_way <= {*of_rows.__struct_fields__}

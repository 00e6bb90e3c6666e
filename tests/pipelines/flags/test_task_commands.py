"""Whatever a task is told can be told everywhere: by flags, template parameters, YAML, and from other languages."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.pipelines.commands import yaml_job
from millrace.pipelines.commands.expansion import URNS
from millrace.pipelines.dataflow.metadata import metadata
from millrace.pipelines.flags.job_flags import make_parser
from millrace.pipelines.flags.task_commands import TASKS, TaskCommand
from millrace.transforms.beam_rows import row_transforms

BY_ANOTHER_NAME = {"rows": "schema", "details": "output"}
"""Rows of files have details always."""
NO_PARAMETER = {"backend"}
"""A stand-in for tests."""
ROWS = {name: getattr(row_transforms, f"{task.transform.__name__}Rows") for name, task in TASKS.items()}


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_every_setting_is_a_flag_of_the_command_and_a_parameter_of_the_template(task: TaskCommand) -> None:
    settings = {BY_ANOTHER_NAME.get(name, name) for name in task.settings.__struct_fields__}
    settings |= {*ModelConfig.__struct_fields__, *ManagerConfig.__struct_fields__, *task.parameters}
    flags = {action.dest for action in make_parser(task)._actions}
    assert settings - flags == set()
    assert settings - {parameter["name"] for parameter in metadata()["parameters"]} - NO_PARAMETER == set()


def test_every_sampling_parameter_is_a_flag_of_some_command() -> None:
    assert {*SamplingParams.__struct_fields__} == {name for task in TASKS.values() for name in task.parameters}


def test_every_task_has_a_urn_and_a_name_in_yaml() -> None:
    assert {f"millrace:transform:{name}:v1": rows for name, rows in ROWS.items()} == URNS
    (provider,) = yaml.safe_load(Path(yaml_job.PROVIDERS).read_text(encoding="utf-8"))
    names = {rows.__name__.removesuffix("Rows"): f"{rows.__module__}.{rows.__name__}" for rows in ROWS.values()}
    assert provider["transforms"] == names


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_a_template_of_other_commands_is_told_apart(task: TaskCommand) -> None:
    (told,) = (each["helpText"] for each in metadata()["parameters"] if each["name"] == "template")
    (action,) = (action for action in make_parser(task)._actions if action.dest == "template")
    assert action.help
    assert action.help in told

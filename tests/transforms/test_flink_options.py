"""Options of Flink's job server, which Beam's Python does not know: jobs with a model say what keeps their rows."""

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.portable_runner import JobServiceHandle

from millrace.transforms.generate import Generate
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.runners import has_checkpoints


def sent(*flags: str) -> Any:
    """What a job server is told of a pipeline that generates."""
    p = beam.Pipeline(options=PipelineOptions(list(flags)))
    _ = p | beam.Create(["a"]) | Generate("stand-in", open_client=StandInClient)
    return JobServiceHandle.encode_pipeline_options(p.options.get_all_options())


@pytest.mark.parametrize(
    ("flags", "finishes"),
    [
        ([], True),
        (["--finish_bundle_before_checkpointing"], True),
        (["--finish_bundle_before_checkpointing=true"], True),
        (["--finish_bundle_before_checkpointing=false"], False),
    ],
)
def test_bundles_end_before_a_checkpoint_unless_someone_says_otherwise(flags: list[str], finishes: bool) -> None:
    assert sent(*flags)["beam:option:finish_bundle_before_checkpointing:v1"] is finishes


def test_nothing_else_is_said_that_nobody_asked_for() -> None:
    said = dict(sent())
    assert not [name for name in said if "checkpoint" in name and "finish" not in name]
    assert not [name for name in said if "max_bundle" in name]


def test_a_pipeline_without_a_model_says_nothing() -> None:
    options = beam.Pipeline(options=PipelineOptions([])).options
    said = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    assert "beam:option:finish_bundle_before_checkpointing:v1" not in said


def test_numbers_reach_the_job_server() -> None:
    assert sent("--checkpointing_interval=500")["beam:option:checkpointing_interval:v1"] == "500"


@pytest.mark.parametrize(
    ("flags", "has"), [([], False), (["--checkpointing_interval=-1"], False), (["--checkpointing_interval=500"], True)]
)
def test_checkpoints_are_known_by_their_interval(flags: list[str], has: bool) -> None:
    assert has_checkpoints(PipelineOptions(flags)) is has


def test_who_turns_it_off_is_told_what_that_costs(caplog: pytest.LogCaptureFixture) -> None:
    sent("--checkpointing_interval=500", "--finish_bundle_before_checkpointing=false")
    assert "loses rows" in caplog.text

"""Streams on Prism whose model changes: by a watched file, and by a side input that comes window by window."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Timestamp

from millrace.transforms.elements.completions import Completion
from millrace.transforms.generate import Generate
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.models.updates import WatchedFile
from tests.servers.prism import prism
from tests.waiting import eventually

SECONDS, EVERY = 25, 1.25
BEFORE = 10
"""Seconds from the beginning of a test to its first element: the pipeline starts meanwhile."""
FLAGS = ["--streaming", "--environment_type=LOOPBACK"]

pytestmark = [pytest.mark.runners, pytest.mark.slow]


class Answered:
    """What has come out, by (text, model); the workers are threads of this process."""

    rows: ClassVar[list[tuple[str, str]]] = []


@pytest.fixture
def rows() -> Iterator[list[tuple[str, str]]]:
    Answered.rows.clear()
    yield Answered.rows
    Answered.rows.clear()


def note(completion: Completion, file: str = "") -> None:
    """After a few, the file names the next model."""
    Answered.rows.append((completion.text, completion.model))
    if file and len(Answered.rows) == 5:
        Path(file).write_text("b")


def stream() -> beam.Pipeline:
    return beam.Pipeline(runner="PrismRunner", options=PipelineOptions([*FLAGS, f"--prism_location={prism()}"]))


def generate(updates: Any) -> Generate:
    return Generate("a", open_client=StandInClient, updates=updates)


def expect_a_change(rows: list[tuple[str, str]], log: pytest.LogCaptureFixture) -> None:
    """Each element is answered once, the first by one model, the last by the other, and nothing turns back.

    They may come out in another order: Prism runs several bundles at a time.
    """
    assert len({text for text, _ in rows}) == len(rows) == SECONDS / EVERY
    models = [model for _, model in sorted(rows)]
    assert (models[0], models[-1]) == ("a", "b")
    eventually(lambda: "from here on, no longer" in log.text, "the thread that changed it says so after it")
    assert log.text.count("from here on, no longer") == 1


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "millrace")
    return caplog


def test_a_stream_goes_over_to_the_model_that_a_file_names(
    rows: list[tuple[str, str]], log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    start = Timestamp.now() + BEFORE
    with stream() as p:
        prompts = p | PeriodicImpulse(start, start + SECONDS, EVERY) | beam.Map(lambda at: f"at {float(at):.1f}")
        answers = prompts | generate(WatchedFile(str(tmp_path / "current"), every=0.2))
        _ = answers | "Note" >> beam.Map(note, str(tmp_path / "current"))
    expect_a_change(rows, log)


def test_a_stream_goes_over_to_the_model_that_a_side_input_names(
    rows: list[tuple[str, str]], log: pytest.LogCaptureFixture
) -> None:
    start = Timestamp.now() + BEFORE
    with stream() as p:
        impulses = p | "Often" >> PeriodicImpulse(start, start + SECONDS, EVERY)
        prompts = impulses | beam.Map(lambda at: f"at {float(at):.1f}") | beam.WindowInto(FixedWindows(5))
        now_and_then = p | "Now and then" >> PeriodicImpulse(start, start + SECONDS, 5, apply_windowing=True)
        names = now_and_then | beam.Map(lambda at, begun: "b" if float(at) - begun > 12 else "a", float(start))
        _ = prompts | generate(names) | "Note" >> beam.Map(note)
    expect_a_change(rows, log)

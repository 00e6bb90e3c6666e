"""A stream on a terminal: the progress line, and nothing that Beam's worker prints to stderr."""

import signal
from pathlib import Path

import pytest

from tests.job_commands import job_command
from tests.pipelines.streams.jobs import nothing_is_left, rows
from tests.servers.kafka import Kafka, until
from tests.servers.prism import prism
from tests.terminals import on_terminal

pytestmark = [pytest.mark.runners, pytest.mark.slow]


def test_a_stream_on_a_terminal_shows_its_progress_alone(broker: Kafka, runtime: Path) -> None:
    prompts, answers = broker.topic(partitions=2), broker.topic()
    broker.send(prompts, rows(range(20)))
    command = job_command("run", f"kafka:{broker.address}/{prompts}", f"kafka:{broker.address}/{answers}")
    flags = ["--backend=fake", "--max_tokens=4", "--linger=0.5", f"--prism_location={prism()}"]
    with on_terminal([*command, *flags]) as job:
        until(lambda: broker.committed(prompts) == 20)
        until(lambda: "20 rows, waiting for more" in job.shown())
        job.process.send_signal(signal.SIGINT)
        shown = job.ended(300)
    assert "Bundle" not in shown
    assert "Traceback" not in shown
    nothing_is_left(runtime)

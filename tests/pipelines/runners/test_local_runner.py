"""Beam's local runner with worker processes: what they are told, who reaches them, and that they may be killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.runners.worker import data_plane

from millrace.model_manager.wire.errors import WorkerLost
from millrace.pipelines.runners.local_runner import FnApiRunner
from millrace.pipelines.runners.watched_workers import DataConnection
from tests.servers.processes import listening
from tests.waiting import eventually

WORKERS = 2


@contextmanager
def pipeline(workers: int = WORKERS) -> Iterator[beam.Pipeline]:
    flags = ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([*flags, "--pickle_library=cloudpickle"])) as made:
        yield made


def kill_this_process(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_this_process(_: int) -> None:
    os._exit(3)


def stand_still(_: int) -> None:
    time.sleep(600)


class _Adding(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """A transform with something to say to workers."""

    def expand(self, pipeline: Any) -> Any:
        pipeline.pipeline.options.view_as(SetupOptions).beam_plugins = ["json"]
        return pipeline | beam.Create([1]) | beam.Map(_told, listening()) | beam.Map(_assert_told)


def _told(_: int, before: set[tuple[str, int]]) -> Any:
    """The plugins, and where this worker's parent listens since there is a pipeline."""
    plugins = json.loads(os.environ["PIPELINE_OPTIONS"])["beam:option:beam_plugins:v1"]
    return plugins, {host for host, _ in listening(os.getppid()) - before}


def _assert_told(told: Any) -> None:
    assert told == (["json"], {"127.0.0.1"})


def test_workers_are_told_what_transforms_add_to_the_options_where_no_other_machine_hears_it() -> None:
    with pipeline(workers=1) as p:
        _ = p | _Adding()


@pytest.mark.parametrize(
    ("end", "told"), [(kill_this_process, "was killed by SIGKILL"), (fail_this_process, "ended with status 3")]
)
def test_the_death_of_a_worker_ends_the_pipeline_with_its_name(end: Callable[[int], None], told: str) -> None:
    before = set(psutil.Process().children())
    with (
        pytest.raises(WorkerLost, match=rf"^worker [12] of 2 \(process \d+\) {told}.*; .*--resume") as raised,
        pipeline() as p,
    ):
        _ = p | beam.Create([1]) | beam.Map(end)
    assert raised.value.was_killed == (end is kill_this_process)
    assert set(psutil.Process().children()) <= before, "the other worker has ended too"


def test_the_death_of_a_worker_that_starts_ends_the_pipeline_with_its_name() -> None:
    before = set(psutil.Process().children())

    def kill_one() -> None:
        (child, *_) = eventually(lambda: set(psutil.Process().children()) - before)
        child.kill()

    killing = threading.Thread(target=kill_one)
    killing.start()
    with pytest.raises(WorkerLost, match=r"^worker [12] of 2 .* was killed by SIGKILL"), pipeline() as p:
        _ = p | beam.Create([1]) | beam.Map(stand_still)  # the thread may come late
    killing.join()


def test_a_worker_that_is_given_up_holds_no_reader_back() -> None:
    connection = DataConnection()
    reading = connection.input_elements("instruction", ["transform"], lambda: False)
    ends: list[Exception] = []

    def read() -> None:
        try:
            next(reading)
        except Exception as error:
            ends.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    eventually(lambda: connection._received)
    connection.give_up()
    reader.join(timeout=60)
    assert ends
    connection.close()


def test_a_worker_that_is_given_up_holds_no_sender_back() -> None:
    connection = DataConnection()
    stream = connection.output_stream("instruction", "transform")
    most = 2 * data_plane._DEFAULT_SEND_QUEUE_MAX_ELEMENTS

    def send() -> None:
        for _ in range(most + 10):
            stream.write(b"x")
            stream.flush()

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    connection.give_up()
    sending.join(timeout=60)
    assert not sending.is_alive()
    connection.close()

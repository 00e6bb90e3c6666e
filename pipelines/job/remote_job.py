"""Shows a job on a job server while its command waits: id, each new state, and counts of rows if the server has any."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.portability.portable_runner import PipelineResult, PortableMetrics

from millrace.transforms.elements.beam_metrics import NAMESPACE

from .words import answered

_EVERY = 2.0
"""Seconds between two looks."""

Tell = Callable[[str], None]


def job_id(result: PipelineResult) -> str:
    """The job server's id of the job. Beam's result has no public name for it, nor for the service asked below."""
    return str(result._job_id)


@contextmanager
def followed(result: PipelineResult, tell: Tell) -> Iterator[None]:
    """While the block runs, tell each new state of the job, and each new count of rows."""
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(result, tell, ended), name="follow-job", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _follow(result: PipelineResult, tell: Tell, ended: threading.Event) -> None:
    """Returns when the job has ended, or the job server is gone; the block gets that error itself."""
    shown = ""
    while not ended.is_set():
        try:
            now = ", ".join(filter(None, (_state(result), _rows(result))))
        except (grpc.RpcError, ValueError):  # ValueError: the channel is closed
            return
        if now != shown and not ended.is_set():
            tell(f"job {job_id(result)}: {now}")
            shown = now
        ended.wait(_EVERY)


def _state(result: PipelineResult) -> str:
    """The job's state, asked from the service: `result.state` would write what the waiting thread reads."""
    request = beam_job_api_pb2.GetJobStateRequest(job_id=job_id(result))
    state: str = beam_job_api_pb2.JobState.Enum.Name(result._job_service.GetState(request).state)
    return state


def _rows(result: PipelineResult) -> str:
    """Counts of rows; empty while the job server has none. Flink's has them at a job's end."""
    request = beam_job_api_pb2.GetJobMetricsRequest(job_id=job_id(result))
    try:
        metrics = PortableMetrics(result._job_service.GetJobMetrics(request))
    except grpc.RpcError:
        return ""
    counts = Counter[str]()
    for counter in metrics.query(MetricsFilter().with_namespace(NAMESPACE))["counters"]:
        counts[counter.key.metric.name] += counter.attempted or counter.committed or 0
    done, failed = counts["requests"] - counts["failures"], counts["failures"] + counts["unreadable_rows"]
    return answered(done, failed) if done or failed else ""

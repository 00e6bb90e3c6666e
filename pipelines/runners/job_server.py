"""The job server that `--job_endpoint` names, and the runner that takes jobs to it.

Whether the server is there, and whether it is Flink's, is asked before a job is built: Beam's own runners wait for it
silently, for a minute or more. Its workers are where the runner's machines see them, and not always where this process
does: a failure that may come from them gets a hint. The loss of the job server, or of Flink's job manager, is named.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability import portable_runner

from millrace.model_manager.wire.errors import ConfigError, RunnerLost
from millrace.transforms.runners import runner_of

_CONNECT_MS = 10_000
_EMBEDDED = "embed"
"""Beam's name for a job server in this process."""
_OF_FLINK = "checkpointing_interval"
_NO_JAR = re.compile(r"\.jar\b")
_NOT_REACHED = re.compile(
    "(Connect|UnknownHost|UnresolvedAddress|NoRouteToHost)Exception|RuntimeException: UNAVAILABLE"
)
"""In the failure of a job, by Java's names, where a machine of the runner's did not reach another."""


def runs_on_flink(options: PipelineOptions) -> bool:
    """Whether the runner is Flink. Raises ConfigError where the job server is missing, or does not answer."""
    endpoint = options.view_as(PortableOptions).job_endpoint
    runner = runner_of(options)
    if runner.needs_job_endpoint and not endpoint:
        raise ConfigError(
            "--job_endpoint is missing: --runner PortableRunner takes a job to a job server; takes the HOST:PORT of "
            "one, such as localhost:8099"
        )
    described = _options_of(endpoint, options) if endpoint and endpoint != _EMBEDDED else []
    return runner.is_flink or _OF_FLINK in described


def _options_of(endpoint: str, options: PipelineOptions) -> list[str]:
    """The names of the job server's own options."""
    timeout = options.view_as(PortableOptions).job_server_timeout
    with grpc.insecure_channel(endpoint, [("grpc.min_reconnect_backoff_ms", _CONNECT_MS)]) as channel:
        stub = beam_job_api_pb2_grpc.JobServiceStub(channel)
        try:
            answer = stub.DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=timeout, wait_for_ready=False
            )
        except grpc.RpcError as error:
            raise ConfigError(f"--job_endpoint {endpoint}: no job server at {endpoint} ({_why(error)})") from None
    return [option.name for option in answer.options]


def _why(error: grpc.RpcError) -> str:
    """The innermost of gRPC's reasons."""
    details: str = error.details() or ""
    return details.rsplit(": ", 1)[-1].rstrip("])")


@contextlib.contextmanager
def hint_at_workers(options: PipelineOptions) -> Iterator[None]:
    """A failure that looks as if the job's worker pool was not there gets a note on where it was looked for."""
    try:
        yield
    except Exception as error:
        portable = options.view_as(PortableOptions)
        if runner_of(options).is_flink and not portable.job_endpoint and _NO_JAR.search(str(error)):
            error.add_note(
                "Beam did not get the jar of Flink's job server: docs/tutorials/flink.md in millrace's repository says"
                " how to name one"
            )
        if portable.environment_type == "EXTERNAL" and _NOT_REACHED.search(str(error)):
            error.add_note(
                f"if that was the worker pool, --environment_config {portable.environment_config} does not name one as "
                "the runner's machines see it: see that `millrace worker-pool` runs there"
            )
        raise


_NO_JOB_MANAGER = re.compile(
    r"FlinkJobNotFoundException|failed in state FAILED: java\.net\.ConnectException: Connection refused$"
)
"""The failure of a job whose Flink answers the job server no more, or was started again and knows no such job. gRPC's
own refusals, of workers, have more words.
"""


@contextlib.contextmanager
def losses_told(options: PipelineOptions, job: str, to_cancel: str) -> Iterator[None]:
    """Raises RunnerLost. If a job server elsewhere is gone, the job may still run. If Prism or Flink's job manager is
    gone, the job is lost too. `job`: its name; `to_cancel`: how to cancel it.
    """
    try:
        yield
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise
        if runner_of(options).is_on_this_machine:
            raise RunnerLost(f"Prism is lost, and {job} with it") from error
        endpoint = options.view_as(PortableOptions).job_endpoint or "an address of its own"
        raise RunnerLost(
            f"the job server at {endpoint} is lost, and {job} may still run: {to_cancel}, before another writes "
            "its output"
        ) from error
    except RuntimeError as error:
        if not _NO_JOB_MANAGER.search(str(error)):
            raise
        raise RunnerLost(f"Flink's job manager is lost, and {job} with it") from error


class PortableRunner(portable_runner.PortableRunner):
    """Beam's runner for a job server, such as Prism's or Flink's, whose jobs may last."""

    keeps_unknown_options = False
    """Whether the job server gets flags that Beam does not know."""

    def create_job_service_handle(self, job_service: Any, options: PipelineOptions) -> Any:
        return _JobServiceHandle(job_service, options, self.keeps_unknown_options)


class _JobServiceHandle(portable_runner.JobServiceHandle):
    """A job server has `--job_server_timeout` seconds, 300, for an answer. Beam takes the news of a job for one answer.

    From a server that knows a job before it runs, as Prism does, the news would end then, and the job with it.
    """

    def run(self, preparation_id: str) -> Any:
        self.timeout = None
        return super().run(preparation_id)

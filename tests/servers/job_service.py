"""A job server as far as a submission meets it: it says what options it has, and takes no job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

FLINKS = ("flink_master", "checkpointing_interval")
"""Options that Flink's job server has."""


@contextmanager
def job_service(
    *options: str, on_prepare: Callable[[], None] = lambda: None, refusal: str = "takes no job"
) -> Iterator[str]:
    """Its endpoint; `on_prepare` is called when a job comes, and `refusal` is what it is told."""
    server = grpc.server(ThreadPoolExecutor(1))
    beam_job_api_pb2_grpc.add_JobServiceServicer_to_server(_JobService(options, on_prepare, refusal), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


class _JobService(beam_job_api_pb2_grpc.JobServiceServicer):
    def __init__(self, options: tuple[str, ...], on_prepare: Callable[[], None], refusal: str) -> None:
        self._options = options
        self._on_prepare = on_prepare
        self._refusal = refusal

    def DescribePipelineOptions(self, _request: object, _context: object) -> Any:  # noqa: N802
        described = [beam_job_api_pb2.PipelineOptionDescriptor(name=name) for name in self._options]
        return beam_job_api_pb2.DescribePipelineOptionsResponse(options=described)

    def Prepare(self, _request: object, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._on_prepare()
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self._refusal)

"""Beam's local runner, as jobs of ours use it: with workers that are watched, at ports that no other machine reaches.

Beam's own lets a job wait for ever for a worker that died while it started, and opens its ports on all interfaces of
the machine, where they tell all options of the pipeline to whoever asks. It names the classes that do so in the code of
its methods, so two of these methods run here with other classes in their place (`_with`); Beam itself stays as it is.
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.portability.local_job_service import BeamFnLoggingServicer
from apache_beam.runners.portability.portable_runner import JobServiceHandle

from .watched_workers import DataConnection, WatchedWorkers, WorkerConnection

_ANY_PORT_OF_THIS_MACHINE = "127.0.0.1:0"
_OF_THIS_MACHINE = {python_urns.EMBEDDED_PYTHON, python_urns.EMBEDDED_PYTHON_GRPC, python_urns.SUBPROCESS_SDK}
"""Environments whose workers are threads or children of this process."""


def _with(method: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """The same code, for which these names of its module stand for something else."""
    return types.FunctionType(method.__code__, {**method.__globals__, **names}, method.__name__, method.__defaults__)


class FnApiRunner(fn_runner.FnApiRunner):  # type: ignore[misc, unused-ignore]
    """The runner that DirectRunner comes to in the end, without what that does first: download Prism.

    Raises WorkerLost, at once, when a worker process dies. It tells its worker processes all options of the pipeline.
    Beam's own tells them what it is given as it is made, before any transform has added its part.
    """

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:
        encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
        provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        self._provision_info = fn_runner.ExtendedProvisionInfo(provision)
        return super().run_pipeline(pipeline, options)

    def run_stages(self, stage_context: Any, stages: Any) -> Any:
        made: list[_Workers] = []

        def make(*arguments: Any) -> _Workers:
            made.append(_Workers(*arguments))
            return made[0]

        try:
            return _with(fn_runner.FnApiRunner.run_stages, WorkerHandlerManager=make)(self, stage_context, stages)
        except Exception as error:
            lost = made[0].lost if made else None
            if lost is not None:  # what Beam raises is what came of it
                raise lost from error
            raise


class _Workers(WatchedWorkers):
    """Workers that reach this process at ports of this machine alone."""

    def get_worker_handlers(self, environment_id: str | None, num_workers: int) -> Any:
        urns = {environment.urn for environment in self._environments.values()}
        if self._grpc_server is None and urns <= _OF_THIS_MACHINE and urns != {python_urns.EMBEDDED_PYTHON}:
            self._grpc_server = _LoopbackServer(self.state_servicer, self._job_provision_info, self)
        return super().get_worker_handlers(environment_id, num_workers)


class _LoopbackServer(worker_handlers.GrpcServer):  # type: ignore[misc, unused-ignore]
    """Beam's, at the loopback address; its connections can be given up, and logs of workers are a line each.

    Beam makes server and connections itself and takes neither an address nor a class, so they are put in its place.
    """

    def __init__(self, *arguments: Any) -> None:
        made = _with(worker_handlers.GrpcServer.__init__, grpc=_LoopbackGrpc, BasicLoggingService=BeamFnLoggingServicer)
        made(self, *arguments)
        self.control_handler._connections_by_worker_id = defaultdict(WorkerConnection)
        self.data_plane_handler._connections_by_worker_id = defaultdict(
            functools.partial(DataConnection, worker_handlers.DATA_BUFFER_TIME_LIMIT_MS)
        )


class _LoopbackGrpc:
    """Stands for the module grpc where Beam makes servers of all interfaces."""

    @staticmethod
    def server(*arguments: Any, **options: Any) -> Any:
        server = grpc.server(*arguments, **options)
        add_port = server.add_insecure_port
        server.add_insecure_port = lambda _all_interfaces: add_port(_ANY_PORT_OF_THIS_MACHINE)
        return server

"""Prism, Beam's portable runner for one machine, as the child of this process: where streams run by default, and other
jobs that name it.

It ends when it is told to, and with this process, however that ends. Its workers are threads of this process. Other
machines reach neither their port nor Prism's own (loopback_only.py).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import grpc
from apache_beam import version as beam
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner
from apache_beam.runners.worker import sdk_worker_main
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.transforms.environments import ExternalEnvironment
from apache_beam.utils.thread_pool_executor import shared_unbounded_instance

from millrace.model_manager.wire.die_with_parent import with_this_process
from millrace.model_manager.wire.errors import ConfigError

from . import loopback_only
from .job_server import PortableRunner

_PACKAGE = "github.com/apache/beam/sdks/v2/go/cmd/prism"
_ANY_PORT_OF_THIS_MACHINE = "127.0.0.1:0"
_PINGS = [("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)]
"""As many as there are."""
_log = logging.getLogger(__name__)


class OwnPrism(PortableRunner, PrismRunner):
    """Beam's PrismRunner, with a Prism of its own. Raises ConfigError where there is none."""

    keeps_unknown_options = True

    def __init__(self) -> None:
        super().__init__()
        self._server: _PrismServer | None = None

    def default_job_server(self, options: PipelineOptions) -> Any:
        self._server = _PrismServer(options)
        return self._server

    @staticmethod
    def start_and_replace_loopback_environments(pipeline: Any, options: PipelineOptions) -> list[Callable[[], Any]]:
        """Replaces Beam's own, whose pool of workers runs anything for anybody in the network.

        Returns callables that end the pool.
        """
        environments = pipeline.components.environments.values()
        loopback = [each for each in environments if each.urn == python_urns.EMBEDDED_PYTHON_LOOPBACK]
        if not loopback:
            return []
        address, server = _start_workers(options)
        for environment in loopback:
            external = ExternalEnvironment(address).to_runner_api(None)
            environment.urn, environment.payload = external.urn, external.payload
        return [functools.partial(server.stop, 1)]

    def close(self) -> None:
        """End Prism; once is enough, more does no harm."""
        if self._server is not None:
            self._server.stop()
            self._server = None


def _start_workers(options: PipelineOptions) -> tuple[str, Any]:
    """Threads that work when Prism asks for them; where, and the server.

    As Beam's `BeamFnExternalWorkerPoolServicer.start`, which serves at all interfaces; Beam reads the two settings for
    it by private functions alone.
    """
    workers = BeamFnExternalWorkerPoolServicer(
        use_process=options.view_as(DebugOptions).lookup_experiment("use_loopback_process_worker", False),
        state_cache_size=sdk_worker_main._get_state_cache_size_bytes(options=options),
        data_buffer_time_limit_ms=sdk_worker_main._get_data_buffer_time_limit_ms(
            options.view_as(DebugOptions).experiments or []
        ),
    )
    server = grpc.server(shared_unbounded_instance(), options=_PINGS)
    port = server.add_insecure_port(_ANY_PORT_OF_THIS_MACHINE)
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(workers, server)
    server.start()
    return _ANY_PORT_OF_THIS_MACHINE.replace(":0", f":{port}"), server


class _PrismServer(PrismJobServer):
    def __init__(self, options: PipelineOptions) -> None:
        super().__init__(options)
        if not logging.getLogger().isEnabledFor(logging.INFO):
            self._log_filter = None  # it would have Prism's lines logged whatever the level

    def stop(self) -> Any:
        """Stop the server; does nothing if it was never started."""
        return super().stop() if self._server is not None else None

    def subprocess_cmd_and_endpoint(self) -> tuple[list[Any], str]:
        try:
            command, endpoint = super().subprocess_cmd_and_endpoint()
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"Prism, Beam's runner that streams run on by default, cannot be started ({error}): build one with "
                f"'go install {_PACKAGE}@v{beam.__version__}' and name it by --prism_location"
            ) from None
        if loopback_only.is_possible():
            command = loopback_only.on_loopback(command)
        else:
            _log.warning(
                "other machines reach Prism's ports, and may submit jobs that run as you: here the kernel does not let "
                "the ports be held to the loopback address (docs/how-to/streams.md and docs/explanation/security.md in "
                "millrace's repository)"
            )
        return with_this_process(command), endpoint

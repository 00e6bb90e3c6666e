"""`millrace expansion`: the transforms of rows for pipelines in Java, Go and Beam's other languages.

A pipeline sends the URN of a transform and a row of its settings (row_transforms.py has them), and gets the steps that
the transform consists of. Those are Python's: unless an environment is named by Beam's flags, this process runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.coders import RowCoder
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, SetupOptions
from apache_beam.portability.api import (
    beam_artifact_api_pb2_grpc,
    beam_expansion_api_pb2_grpc,
    beam_fn_api_pb2_grpc,
    external_transforms_pb2,
)
from apache_beam.runners.portability.artifact_service import ArtifactRetrievalService, BeamFilesystemHandler
from apache_beam.runners.portability.expansion_service import ExpansionServiceServicer
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.transforms.fully_qualified_named_transform import (
    PYTHON_FULLY_QUALIFIED_NAMED_TRANSFORM_URN,
    FullyQualifiedNamedTransform,
)

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.beam_rows import row_transforms
from millrace.transforms.beam_rows.row_transforms import ClassifyRows, EmbedRows, ExtractRows, GenerateRows, ScoreRows
from millrace.transforms.beam_rows.row_values import plain

from ..edge import at_the_edge
from ..flags.beam import beam_options
from ..flags.parser import FlagParser
from ..interrupts import end_signal
from ..job.logs import logs_at

URNS: dict[str, type[beam.PTransform]] = {
    "millrace:transform:generate:v1": GenerateRows,
    "millrace:transform:score:v1": ScoreRows,
    "millrace:transform:embed:v1": EmbedRows,
    "millrace:transform:extract:v1": ExtractRows,
    "millrace:transform:classify:v1": ClassifyRows,
}
"""The payload is Beam's ExternalConfigurationPayload: a row of settings with its schema.

The names are written out, as in yaml_providers.yaml: pipelines elsewhere hold them, so renaming a class keeps them. A
test compares them with the table of tasks. Java's Generate takes any setting by its name.
"""
_BY_NAME = frozenset(f"{row_transforms.__name__}.{transform.__name__}" for transform in URNS.values())
"""What Java's PythonExternalTransform may name; nothing else is expanded."""
_EVERYWHERE = ("0.0.0.0", "::", "[::]", "")
_THREADS = 16


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes; returns the exit status."""
    return at_the_edge(lambda: _serve(arguments), verbose="--verbose" in arguments)


def _serve(arguments: Sequence[str]) -> int:
    parser = FlagParser(
        prog="millrace expansion",
        description="Serve Generate, Score, Embed, Extract and Classify to Beam pipelines in other languages.",
        epilog="All other flags are Beam's: --environment_type and --environment_config say where the transforms run;"
        " by default this process runs them.",
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=int, default=8097, help="Port to listen on; 0 takes a free one. Default: 8097.")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="Address to listen on. The service has no authentication; do not expose it. Default: 127.0.0.1.",
    )
    parser.add_argument("--verbose", action="store_true", help="Log the requests.")
    flags, rest = parser.parse_known_args(list(arguments))
    ended = end_signal()
    with logs_at("info" if flags.verbose else "warning"), serving(flags.host, flags.port, rest) as address:
        print(f"serving {', '.join(URNS)} at {address}", flush=True)
        ended.wait()
    return 0


@contextmanager
def serving(host: str, port: int, flags: list[str]) -> Iterator[str]:
    """An expansion service, and with no environment among Beam's `flags` a pool of workers; yields its host:port."""
    server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="expansion"))
    try:
        port = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        raise ConfigError(f"--port {port}: is taken, or --host {host} is not of this machine") from None
    address = f"{host}:{port}"
    options = _options(flags, address)
    pickler.set_library(options.view_as(SetupOptions).pickle_library)  # before anything is built
    expansion, artifacts = (
        ExpansionServiceServicer(options),
        ArtifactRetrievalService(BeamFilesystemHandler(None).file_reader),
    )
    beam_expansion_api_pb2_grpc.add_ExpansionServiceServicer_to_server(expansion, server)
    beam_artifact_api_pb2_grpc.add_ArtifactRetrievalServiceServicer_to_server(artifacts, server)
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(BeamFnExternalWorkerPoolServicer(), server)
    for urn, transform in URNS.items():
        beam.PTransform.register_urn(
            urn, external_transforms_pb2.ExternalConfigurationPayload, _from_payload(transform)
        )
    beam.PTransform.register_urn(
        PYTHON_FULLY_QUALIFIED_NAMED_TRANSFORM_URN, external_transforms_pb2.ExternalConfigurationPayload, _by_name
    )
    with FullyQualifiedNamedTransform.with_filter(f"{row_transforms.__name__}.*"):
        server.start()
        try:
            yield address
        finally:
            server.stop(grace=None).wait()


def _options(flags: list[str], address: str) -> PipelineOptions:
    beam_options(flags, {})
    options = PipelineOptions([*flags, "--experiments=beam_fn_api", "--sdk_location=container"])
    portable = options.view_as(PortableOptions)
    if portable.environment_type is None:
        if (host := address.rpartition(":")[0]) in _EVERYWHERE:
            raise ConfigError(
                f"--host {host}: runners cannot reach this process there; name an address of this machine, or add "
                "Beam's --environment_type, which says where the transforms run"
            )
        portable.environment_type, portable.environment_config = "EXTERNAL", address
    return options


def _by_name(transform: Any, payload: Any, context: Any) -> Any:
    """Beam's filter is a pattern alone, which lets through whatever a module imports."""
    asked = RowCoder(payload.schema).decode(payload.payload).constructor
    if asked not in _BY_NAME:
        raise ValueError(f"{asked} is not allowed; takes {', '.join(sorted(_BY_NAME))}")
    return FullyQualifiedNamedTransform.from_runner_api_parameter(transform, payload, context)


def _from_payload(transform: type[beam.PTransform]) -> Callable[..., beam.PTransform]:
    def construct(_transform: Any, payload: Any, _context: Any) -> beam.PTransform:
        settings = RowCoder(payload.schema).decode(payload.payload)
        return transform(**plain(settings))

    return construct

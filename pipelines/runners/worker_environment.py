"""A worker's start: it asks the runner what the job is, and puts the job's own packages in place."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability import common_urns
from apache_beam.portability.api import (
    beam_artifact_api_pb2,
    beam_artifact_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    beam_runner_api_pb2,
    endpoints_pb2,
)
from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor
from google.protobuf import json_format, text_format

from millrace.transforms.files.temporary_folders import temporary_folder

_ANSWER_WITHIN = 60.0
"""Seconds for a runner to say what the job is."""
_PACKAGE_LISTS = ("extra_packages.txt",)
_SDIST = "workflow.tar.gz"
"""What Beam makes of `--setup_file`."""
_log = logging.getLogger(__name__)


def prepare(options: argparse.Namespace, at_end: ExitStack) -> None:
    """Set the environment that sdk_worker_main reads."""
    info = _provision_info(options)
    endpoints = {
        "LOGGING_API_SERVICE_DESCRIPTOR": options.logging_endpoint or info.logging_endpoint.url,
        "CONTROL_API_SERVICE_DESCRIPTOR": options.control_endpoint or info.control_endpoint.url,
        "STATUS_API_SERVICE_DESCRIPTOR": info.status_endpoint.url,
    }
    os.environ["PIPELINE_OPTIONS"] = json_format.MessageToJson(info.pipeline_options)
    os.environ["RUNNER_CAPABILITIES"] = " ".join(info.runner_capabilities)
    for name, url in endpoints.items():
        if url:
            os.environ[name] = text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))
    if info.dependencies:
        folder = at_end.enter_context(_folder())
        os.environ["SEMI_PERSISTENT_DIRECTORY"] = str(folder)
        _stage(options.artifact_endpoint or info.artifact_endpoint.url, options.id, info.dependencies, folder)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for the job's packages; it is gone also after SIGTERM."""
    with temporary_folder("worker") as folder:

        def on_signal(_number: int, _frame: Any) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)

        signal.signal(signal.SIGTERM, on_signal)
        yield folder


def _provision_info(options: argparse.Namespace) -> Any:
    with _channel(options.provision_endpoint, options.id) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        return stub.GetProvisionInfo(request, timeout=_ANSWER_WITHIN, wait_for_ready=True).info


def _channel(url: str, worker_id: str) -> Any:
    return grpc.intercept_channel(grpc.insecure_channel(url), WorkerIdInterceptor(worker_id))


# ── the job's own files ──────────────────────────────────────────────────────────────────────────────────────────────


def _stage(endpoint: str, worker_id: str, dependencies: Any, folder: Path) -> None:
    """Fetch what was staged with the job; sdk_worker_main finds it, and packages are installed beside it."""
    staged = folder / "staged"
    staged.mkdir(mode=0o700, parents=True)
    with _channel(endpoint, worker_id) as channel:
        service = beam_artifact_api_pb2_grpc.ArtifactRetrievalServiceStub(channel)
        asked = beam_artifact_api_pb2.ResolveArtifactsRequest(artifacts=dependencies)
        for artifact in service.ResolveArtifacts(asked).replacements:
            _fetch(service, artifact, staged)
    _install(staged, folder / "packages")


def _fetch(service: Any, artifact: Any, staged: Path) -> None:
    if artifact.role_urn != common_urns.artifact_roles.STAGING_TO.urn:
        _log.warning("a staged file of the role %s is left out", artifact.role_urn)
        return
    role = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(artifact.role_payload)
    with (staged / Path(role.staged_name).name).open("wb") as file:
        for chunk in service.GetArtifact(beam_artifact_api_pb2.GetArtifactRequest(artifact=artifact)):
            file.write(chunk.data)


def _install(staged: Path, packages: Path) -> None:
    """Put the packages of `--requirements_file`, `--extra_package` and `--setup_file` before the installed ones."""
    requirements = staged / "requirements.txt"
    if requirements.exists():
        _pip(packages, "--find-links", str(staged), "-r", str(requirements))
    lists = [staged / name for name in _PACKAGE_LISTS if (staged / name).exists()]
    named = [line.strip() for each in lists for line in each.read_text(encoding="utf-8").splitlines() if line.strip()]
    own = [str(staged / name) for name in [*named, _SDIST] if (staged / name).exists()]
    if own:  # their dependencies are the worker's: it has torch, and shall not fetch it for each job
        _pip(packages, "--no-deps", *own)
    if packages.exists():
        sys.path.insert(0, str(packages))


def _pip(packages: Path, *what: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location")
    subprocess.run([sys.executable, "-m", "pip", "install", *quiet, "--target", str(packages), *what], check=True)

"""Submitting a job to Google Cloud Dataflow: what is missing is said before anything is built, what is asked for is
shown before it is submitted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import google.auth
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, WorkerOptions
from apache_beam.runners.runner import PipelineState
from google.auth.exceptions import DefaultCredentialsError

from millrace.model_manager.store.sources import LocalPath, source_of
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.errors import ConfigError, ModelError
from millrace.transforms.addresses import Address, Files, WatchedFiles
from millrace.transforms.files.object_stores import GS
from millrace.transforms.files.temporary_folders import temporary_files

from ..flags.job_options import JobOptions
from ..flags.shared_flags import told_model
from ..interrupts import interruptible
from ..places.checkpoint_size import weights_bytes
from ..places.checks import check
from .engine_images import check_engine_of_image, told
from .package import find_package
from .workers import TableRow, arrange_workers, is_streaming, table

_TEMPLATE_LAUNCHER = "FLEX_TEMPLATE_PYTHON_PY_FILE"
"""Set in the container that a Flex Template is launched in."""
_FLEX = "use the Flex Template (docs/tutorials/dataflow.md in millrace's repository)"
_ENDED_BADLY = (PipelineState.FAILED, PipelineState.CANCELLED)

Build = Callable[[beam.Pipeline, JobOptions], Any]
"""Applies a job's steps."""


def run_on_dataflow(options: JobOptions, build: Build, show: Callable[[str], None]) -> int:
    """Show what is asked for, and submit it unless `dry_run`; returns the exit status.

    Raises ConfigError or ModelError for what can be known before.
    """
    check_flags(options)
    package = find_package(options.beam)
    if not options.dry_run:
        _check_credentials(options.beam)
    weights, why = _weights(options)
    workers = arrange_workers(options.beam, options.model, options.gpu, weights, stream=is_streaming(options.beam))
    if not options.quiet or options.dry_run:
        rows = [*_job_rows(options), ("package", str(package)), *workers.shown]
        show("\n".join([*table(_title(options), rows), *why]))
    if options.dry_run:
        return 0
    with temporary_files("submit"), package.staged(workers.beam) as beam_options:
        result = _submit(replace(options, beam=beam_options, resource_hints=workers.resource_hints), build)
    return _wait(result, options.beam)


def check_flags(options: JobOptions) -> None:
    """Raises ConfigError for what Dataflow needs and was not given, or was given and workers cannot reach."""
    cloud = options.beam.view_as(GoogleCloudOptions)
    given = {"project": "PROJECT", "region": "us-central1", "temp_location": "gs://bucket/folder"}
    if missing := [name for name in given if not getattr(cloud, name)]:
        flags = " ".join(f"--{name} {given[name]}" for name in missing)
        raise ConfigError(f"--runner DataflowRunner: {', '.join(missing)} missing; add {flags}")
    if Files(str(cloud.temp_location)).scheme != GS:
        raise ConfigError(f"--temp_location {cloud.temp_location}: takes gs://bucket/folder")
    for flag, address in _addresses(options):
        if address.is_local:
            raise ConfigError(f"{flag} {address}: workers do not see this machine's files; takes gs://bucket/…")
    check_engine_of_image(options.model, options.beam)
    if BACKENDS[options.model.backend].fetches_files:
        for flag, model in (("--model", options.model.model), ("--draft_model", options.model.draft_model)):
            _check_model(flag, model, options.beam)
    _check_template(options, cloud.template_location)
    check(options)


def _addresses(options: JobOptions) -> Iterator[tuple[str, Address]]:
    """The addresses that workers read and write, with their flags."""
    yield from (("--input", address) for address in options.input)
    yield "--output", options.output
    if options.dead_letters:
        yield "--dead_letters", options.dead_letters
    if options.updates:
        yield "--model_updates", WatchedFiles(options.updates.path)


def _check_model(flag: str, model: str | None, beam_options: PipelineOptions) -> None:
    if model is None or not isinstance(source_of(model), LocalPath):
        return
    if not beam_options.view_as(WorkerOptions).sdk_container_image or not Path(model).is_absolute():
        raise ConfigError(
            f"{flag} {model}: workers do not see this machine's folders; takes gs://bucket/folder, a hub name, or with"
            " --sdk_container_image the absolute path of a folder in that image"
        )


def _check_template(options: JobOptions, location: str | None) -> None:
    """A classic template is a job's graph as it is now: what a run would look at or change first would be done now."""
    if not location or _TEMPLATE_LAUNCHER in os.environ:
        return
    if options.is_stream and not (options.output.is_broker and options.letters.is_broker):
        raise ConfigError(
            "--template_location: a stream's files are named by their windows alone, and a second run of the template"
            f" would write over the first one's; {_FLEX}"
        )
    if options.if_exists != "refuse":
        raise ConfigError(
            f"--template_location: would act on earlier output when the template is made, not when it runs; leave"
            f" --{options.if_exists} out, or {_FLEX}"
        )


def _check_credentials(beam_options: PipelineOptions) -> None:
    if beam_options.view_as(GoogleCloudOptions).no_auth:
        return
    try:
        google.auth.default()
    except DefaultCredentialsError:
        raise ConfigError(
            "--runner DataflowRunner: no Google credentials are found; run `gcloud auth application-default login`"
            " or set GOOGLE_APPLICATION_CREDENTIALS"
        ) from None


def _weights(options: JobOptions) -> tuple[int | None, list[str]]:
    """Bytes of all models together, and why they are not known if so."""
    backend = BACKENDS[options.model.backend]
    if not backend.fetches_files:
        return None if backend.uses_gpus else 0, [
            f"workers fetch no model: the back end {backend.name} names it to servers"
        ]
    models = (options.model.model, *(each.model for each in options.models), options.model.draft_model)
    names = [name for name in models if name]
    if options.dry_run and any(source_of(name).is_remote for name in names):
        return None, ["a dry run asks no network how large the model is"]
    in_image = bool(options.beam.view_as(WorkerOptions).sdk_container_image)
    try:
        return sum(weights_bytes(name, _revision(options, name), backend.name) for name in names), []
    except ModelError as error:
        if not in_image:
            raise
        return None, [f"the image is taken to hold the model: {error}"]


def _revision(options: JobOptions, name: str) -> str | None:
    return options.model.revision if name == options.model.model else None


def _title(options: JobOptions) -> str:
    cloud = options.beam.view_as(GoogleCloudOptions)
    what = "template" if cloud.template_location else "job"
    ending = ", not submitted: this is a dry run" if options.dry_run else ""
    return f"Dataflow {what} in project {cloud.project}, region {cloud.region}{ending}"


def _job_rows(options: JobOptions) -> list[TableRow]:
    cloud = options.beam.view_as(GoogleCloudOptions)
    image = options.beam.view_as(WorkerOptions).sdk_container_image
    held = told(BACKENDS[options.model.backend])
    engine = [] if BACKENDS[options.model.backend].is_ours else [("engine", options.model.backend)]
    return [
        ("model", told_model(options.model)),
        *engine,
        ("input", " ".join(map(str, options.input))),
        ("output", str(options.output)),
        ("staged to", str(cloud.staging_location or cloud.temp_location)),
        (
            "image",
            f"{image}{held}"
            if image
            else "Beam's own, which installs the package and what it needs as each worker starts",
        ),
    ]


def _submit(options: JobOptions, build: Build) -> Any:
    pipeline = beam.Pipeline(options=options.beam)
    build(pipeline, options)
    return pipeline.run()


def _wait(result: Any, beam_options: PipelineOptions) -> int:
    """Until the job has ended; returns the exit status."""
    if location := beam_options.view_as(GoogleCloudOptions).template_location:
        print(f"template: {location}")
        return 0  # a launcher of Flex Templates waits for this process's end before it starts the job
    console = _console(beam_options, result.job_id())
    with interruptible(lambda: f"the job goes on, and can be cancelled at {console}"):
        print(f"submitted: {console}", flush=True)
        state = result.wait_until_finish()
    print(f"the job's state: {state}")
    return 1 if state in _ENDED_BADLY else 0


def _console(beam_options: PipelineOptions, job: str) -> str:
    cloud = beam_options.view_as(GoogleCloudOptions)
    return f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job}?project={cloud.project}"

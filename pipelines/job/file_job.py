"""What jobs have in common, from files or streams to either: prompts in, results and dead letters out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam

from millrace.transforms.requests.model_transform import ModelSettings, ModelTransform
from millrace.transforms.writing.resume import SkipCompleted

from ..edge import at_the_edge
from ..flags.options import JobOptions, Task, parse
from ..places.endpoints import files_of, reader, schema_of, writer
from ..places.provenance import note_settings
from .run import run_job


def build_file_job(pipeline: beam.Pipeline, options: JobOptions, transform: ModelTransform) -> Any:
    """Input ─► prompts ─► results ─► output, and from each step the dead letters; returns the written files."""
    read, write = reader(options), writer(options)
    prompts, unreadable = pipeline | "Read" >> read
    files = files_of(options)
    if options.if_exists == "resume" and files is not None and not options.source.is_broker:
        skip = SkipCompleted(str(options.output), output_format=options.output_format, schema=schema_of(options))
        prompts = prompts | "Skip" >> skip
    transform.with_resource_hints(**options.resource_hints)
    results, failed = prompts | type(transform).__name__ >> transform.with_exception_handling()
    written = (results, failed, unreadable) | "Write" >> write
    if files is not None:
        note_settings(files, options)
    return written


def run_command(
    task: Task, transform_of: Callable[[JobOptions], ModelTransform], arguments: Sequence[str] | None = None
) -> int:
    """Run the job that the flags (default: the command line's) describe; returns the exit status."""
    flags = sys.argv[1:] if arguments is None else list(arguments)

    def build(pipeline: beam.Pipeline, options: JobOptions) -> Any:
        return build_file_job(pipeline, options, transform_of(options))

    return at_the_edge(lambda: run_job(parse(flags, task), build), verbose="--verbose" in flags)


def common_settings(options: JobOptions) -> ModelSettings:
    """What every transform on a model takes."""
    return {
        "manager": options.manager,
        "chat": options.chat,
        "fail_fast": options.fail_fast,
        "job": options.job,
        "updates": options.updates,
    }

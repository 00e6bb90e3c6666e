"""The commands that run a task on an input: run (generate), score, embed, extract, classify. They are one shape.

input ─► prompts ─► the task's results ─► output, and from each step the dead letters
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import msgspec

from millrace.transforms.elements.repeated_ids import CountRepeatedIds
from millrace.transforms.requests.model_transform import ModelTransform
from millrace.transforms.requests.row_output import RowOutputTransform
from millrace.transforms.tasks import TaskName
from millrace.transforms.writing.output_files import OutputFiles
from millrace.transforms.writing.resume import SkipCompleted

from ..edge import at_the_edge
from ..flags.job_options import JobOptions, parse
from ..interrupts import TERMINATED
from ..job.run import run_job
from ..places.provenance import has_other_template, note_settings
from ..places.sources_and_sinks import files_of, reader, schema_of, writer


def build(pipeline: beam.Pipeline, options: JobOptions, transform: ModelTransform | None = None) -> Any:
    """Apply a job's steps; returns the written files. `transform`: by default the one that the options describe."""
    read, write = reader(options), writer(options)
    transform = transform or transform_of(options)
    prompts, unreadable = pipeline | "Read" >> read
    files = files_of(options)
    if not options.is_stream:
        _ = prompts | "Repeated ids" >> CountRepeatedIds()
    if options.if_exists == "resume" and files is not None and not options.source.is_broker:
        prompts = prompts | "Skip" >> _skip(options, files)
    transform.with_resource_hints(**options.resource_hints)
    results, failed = prompts | type(transform).__name__ >> transform.with_exception_handling()
    written = (results, failed, unreadable) | "Write" >> write
    if files is not None:
        note_settings(files, options)
    return written


def _skip(options: JobOptions, files: OutputFiles) -> SkipCompleted:
    return SkipCompleted(
        str(options.output),
        output_format=options.output_format,
        schema=schema_of(options),
        ids_alone=has_other_template(files, options),
    )


def transform_of(options: JobOptions) -> ModelTransform:
    """The task's transform, with everything that the options say of it."""
    transform = options.task.transform(
        model=options.model,
        params=options.sampling,
        **msgspec.structs.asdict(options.settings),
        **{name: getattr(options.sampling, name) for name in options.task.defaults},
        manager=options.manager,
        chat=options.chat,
        fail_fast=options.fail_fast,
        job=options.job,
        updates=options.updates,
        models=options.models,
        traces=options.traces,
    )
    return transform.as_results() if isinstance(transform, RowOutputTransform) else transform


def run_task(task: TaskName, arguments: Sequence[str] | None = None) -> int:
    """Run the job that the flags (default: the command line's) describe; returns the exit status."""
    flags = sys.argv[1:] if arguments is None else list(arguments)
    return at_the_edge(lambda: run_job(parse(flags, task), build), verbose="--verbose" in flags, also=TERMINATED)


generate = partial(run_task, "generate")
score = partial(run_task, "score")
embed = partial(run_task, "embed")
extract = partial(run_task, "extract")
classify = partial(run_task, "classify")

"""What jobs from files to files have in common: prompts in, results and dead letters out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam

from model_manager.wire.messages import Task
from pipelines.edge import at_the_edge
from pipelines.job import run_job
from pipelines.options import JobOptions, parse
from transforms.model_transform import ModelTransform
from transforms.read import ReadPrompts
from transforms.resume import SkipCompleted
from transforms.write import WriteCompletions


def build_file_job(pipeline: beam.Pipeline, options: JobOptions, transform: ModelTransform) -> Any:
    """Files ─► prompts ─► results ─► files, and from each step the dead letters; returns the written files."""
    prompts, unreadable = pipeline | "Read" >> _read(options).with_exception_handling()
    if options.if_exists == "resume":
        prompts = prompts | "Skip" >> SkipCompleted(options.output, output_format=options.output_format)
    results, failed = prompts | type(transform).__name__ >> transform.with_exception_handling()
    return (results, failed, unreadable) | "Write" >> _write(options)


def run_command(arguments: Sequence[str] | None, task: Task, build: Callable[[beam.Pipeline, JobOptions], Any]) -> int:
    """Run the job that the flags (default: the command line's) describe; returns the exit status."""
    flags = sys.argv[1:] if arguments is None else list(arguments)

    def run() -> int:
        options = parse(flags, task)
        return run_job(options, lambda pipeline: build(pipeline, options))

    return at_the_edge(run, verbose="--verbose" in flags)


def common_settings(options: JobOptions) -> dict[str, Any]:
    """What every transform on a model takes."""
    return {
        "manager": options.manager,
        "chat": options.chat,
        "fail_fast": options.fail_fast,
        "job": options.job,
    }


def _read(options: JobOptions) -> ReadPrompts:
    return ReadPrompts(
        options.input,
        input_format=options.input_format,
        prompt_column=options.prompt_column,
        id_column=options.id_column,
        row_params=options.row_params,
        fail_fast=options.fail_fast,
    )


def _write(options: JobOptions) -> WriteCompletions:
    return WriteCompletions(
        options.output,
        output_format=options.output_format,
        if_exists=options.if_exists,
        num_shards=options.num_shards,
    )

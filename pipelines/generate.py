"""The main job: prompts from files, completed by a model, to files.

python -m pipelines.generate --input 'prompts/*.jsonl' --output out/completions --model org/name --max_tokens 128
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import apache_beam as beam

from pipelines.edge import at_the_edge, leave
from pipelines.job import run_job
from pipelines.options import GenerateOptions, parse
from transforms.generate import Generate
from transforms.read import ReadPrompts
from transforms.resume import SkipCompleted
from transforms.write import WriteCompletions


def build(pipeline: beam.Pipeline, options: GenerateOptions) -> Any:
    """Files ─► prompts ─► completions ─► files, and from each step the dead letters; returns the written files."""
    prompts, unreadable = pipeline | "Read" >> _read(options).with_exception_handling()
    if options.if_exists == "resume":
        prompts = prompts | "Skip" >> SkipCompleted(options.output, output_format=options.output_format)
    completions, failed = prompts | "Generate" >> _generate(options).with_exception_handling()
    return (completions, failed, unreadable) | "Write" >> _write(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the flags (default: the command line's) describe; returns the exit status."""
    flags = sys.argv[1:] if arguments is None else list(arguments)
    return at_the_edge(lambda: _run(parse(flags)), verbose="--verbose" in flags)


def _run(options: GenerateOptions) -> int:
    return run_job(options, lambda pipeline: build(pipeline, options))


def _read(options: GenerateOptions) -> ReadPrompts:
    return ReadPrompts(
        options.input,
        input_format=options.input_format,
        prompt_column=options.prompt_column,
        id_column=options.id_column,
        row_params=options.row_params,
        fail_fast=options.fail_fast,
    )


def _generate(options: GenerateOptions) -> Generate:
    return Generate(
        options.model,
        options.sampling,
        manager=options.manager,
        chat=options.chat,
        fail_fast=options.fail_fast,
        job=options.job,
    )


def _write(options: GenerateOptions) -> WriteCompletions:
    return WriteCompletions(
        options.output,
        output_format=options.output_format,
        if_exists=options.if_exists,
        num_shards=options.num_shards,
    )


if __name__ == "__main__":
    leave(main())

"""Prompts and continuations from files, scored by a model, to files.

python -m pipelines.score --input 'questions/*.jsonl' --output out/scores --model org/name
"""

from __future__ import annotations

from functools import partial
from typing import Any

import apache_beam as beam

from pipelines.edge import leave
from pipelines.file_job import build_file_job, common_settings, run_command
from pipelines.options import JobOptions
from transforms.score import Score


def build(pipeline: beam.Pipeline, options: JobOptions) -> Any:
    """Files ─► prompts ─► scores ─► files, as generate.py; returns the written files."""
    score = Score(
        options.model, options.sampling, continuations_column=options.continuations_column, **common_settings(options)
    )
    return build_file_job(pipeline, options, score)


main = partial(run_command, "score", build)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

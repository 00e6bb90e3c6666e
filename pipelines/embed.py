"""Prompts from files, as a model's vectors, to files.

python -m pipelines.embed --input 'texts/*.jsonl' --output out/vectors --model org/name --pooling mean
"""

from __future__ import annotations

from functools import partial
from typing import Any

import apache_beam as beam

from pipelines.edge import leave
from pipelines.file_job import build_file_job, common_settings, run_command
from pipelines.options import JobOptions
from transforms.embed import Embed


def build(pipeline: beam.Pipeline, options: JobOptions) -> Any:
    """Files ─► prompts ─► vectors ─► files, as generate.py; returns the written files."""
    embed = Embed(
        options.model,
        options.sampling,
        pooling=options.pooling,
        normalize=options.normalize,
        **common_settings(options),
    )
    return build_file_job(pipeline, options, embed)


main = partial(run_command, "embed", build)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

"""The main job: prompts from files, completed by a model, to files.

python -m pipelines.generate --input 'prompts/*.jsonl' --output out/completions --model org/name --max_tokens 128
"""

from __future__ import annotations

from functools import partial
from typing import Any

import apache_beam as beam

from pipelines.edge import leave
from pipelines.file_job import build_file_job, common_settings, run_command
from pipelines.options import JobOptions
from transforms.generate import Generate


def build(pipeline: beam.Pipeline, options: JobOptions) -> Any:
    """Files ─► prompts ─► completions ─► files, and from each step the dead letters; returns the written files."""
    generate = Generate(options.model, options.sampling, stateful=options.stateful, **common_settings(options))
    return build_file_job(pipeline, options, generate)


main = partial(run_command, "generate", build)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

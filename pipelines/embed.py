"""Prompts from files, as a model's vectors, to files.

python -m pipelines.embed --input 'texts/*.jsonl' --output out/vectors --model org/name --pooling mean
"""

from __future__ import annotations

from functools import partial

from pipelines.edge import leave
from pipelines.file_job import common_settings, run_command
from pipelines.options import JobOptions
from transforms.embed import Embed


def embed(options: JobOptions) -> Embed:
    """Prompts ─► vectors."""
    return Embed(
        options.model,
        options.sampling,
        pooling=options.pooling,
        normalize=options.normalize,
        **common_settings(options),
    )


main = partial(run_command, "embed", embed)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

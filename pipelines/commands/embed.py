"""Prompts from files, as a model's vectors, to files.

millrace embed --input 'texts/*.jsonl' --output out/vectors --model org/name --pooling mean
"""

from __future__ import annotations

from functools import partial

from millrace.transforms.embed import Embed

from ..edge import leave
from ..flags.options import JobOptions
from ..job.file_job import common_settings, run_command


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

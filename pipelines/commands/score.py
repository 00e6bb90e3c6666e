"""Prompts and continuations from files, scored by a model, to files.

millrace score --input 'questions/*.jsonl' --output out/scores --model org/name
"""

from __future__ import annotations

from functools import partial

from millrace.transforms.score import Score

from ..edge import leave
from ..flags.options import JobOptions
from ..job.file_job import common_settings, run_command


def score(options: JobOptions) -> Score:
    """Prompts and continuations ─► scores."""
    return Score(
        options.model, options.sampling, continuations_column=options.continuations_column, **common_settings(options)
    )


main = partial(run_command, "score", score)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

"""The main job: prompts from files, completed by a model, to files (job/file_job.py says how they are joined).

millrace run --input 'prompts/*.jsonl' --output out/completions --model org/name --max_tokens 128
"""

from __future__ import annotations

from functools import partial

from millrace.transforms.generate import Generate

from ..edge import leave
from ..flags.options import JobOptions
from ..job.file_job import common_settings, run_command


def generate(options: JobOptions) -> Generate:
    """Prompts ─► completions."""
    return Generate(options.model, options.sampling, stateful=options.stateful, **common_settings(options))


main = partial(run_command, "generate", generate)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

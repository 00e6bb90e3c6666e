"""Documents from files, as rows of a type, to files.

millrace extract --input 'docs/*.txt' --schema invoice.json --output out/rows.parquet --model org/name
"""

from __future__ import annotations

from functools import partial

from millrace.transforms.extract import Extract
from millrace.transforms.requests.model_transform import ModelTransform

from ..edge import leave
from ..flags.asked import Extraction
from ..flags.options import JobOptions
from ..job.file_job import common_settings, run_command


def extract(options: JobOptions) -> ModelTransform:
    """Documents ─► rows."""
    asked = options.typed
    assert isinstance(asked, Extraction)
    return Extract(
        asked.rows,
        options.model,
        options.sampling,
        examples=asked.examples,
        template=asked.template,
        max_tokens=options.sampling.max_tokens,
        stateful=options.stateful,
        **common_settings(options),
    ).as_results()


main = partial(run_command, "extract", extract)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

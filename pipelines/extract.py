"""Documents from files, as rows of a type, to files.

python -m pipelines.extract --input 'docs/*.txt' --schema invoice.json --output out/rows.parquet --model org/name
"""

from __future__ import annotations

from functools import partial
from typing import Any

import apache_beam as beam

from pipelines.edge import leave
from pipelines.file_job import build_file_job, common_settings, run_command
from pipelines.options import JobOptions
from pipelines.typed_flags import Extraction
from transforms.extract import Extract


def build(pipeline: beam.Pipeline, options: JobOptions) -> Any:
    """Files ─► documents ─► rows ─► files, as generate.py; returns the written files."""
    asked = options.typed
    assert isinstance(asked, Extraction)
    extract = Extract(
        asked.rows,
        options.model,
        options.sampling,
        examples=asked.examples,
        template=asked.template,
        stateful=options.stateful,
        **common_settings(options),
    )
    return build_file_job(pipeline, options, extract.as_results())


main = partial(run_command, "extract", build)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

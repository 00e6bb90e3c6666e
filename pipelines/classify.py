"""Documents from files, with labels and how likely each is, to files.

python -m pipelines.classify --input 'reviews/*.csv' --labels 'positive,negative' --output out/labels --model org/name
"""

from __future__ import annotations

from functools import partial
from typing import Any

import apache_beam as beam

from pipelines.edge import leave
from pipelines.file_job import build_file_job, common_settings, run_command
from pipelines.options import JobOptions
from pipelines.typed_flags import Classification
from transforms.classify import Classify


def build(pipeline: beam.Pipeline, options: JobOptions) -> Any:
    """Files ─► documents ─► labels ─► files, as generate.py; returns the written files."""
    asked = options.typed
    assert isinstance(asked, Classification)
    classify = Classify(
        asked.labels,
        options.model,
        options.sampling,
        multiple=asked.multiple,
        threshold=asked.threshold,
        examples=asked.examples,
        template=asked.template,
        **common_settings(options),
    )
    return build_file_job(pipeline, options, classify.as_results())


main = partial(run_command, "classify", build)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

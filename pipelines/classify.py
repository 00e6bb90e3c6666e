"""Documents from files, with labels and how likely each is, to files.

python -m pipelines.classify --input 'reviews/*.csv' --labels 'positive,negative' --output out/labels --model org/name
"""

from __future__ import annotations

from functools import partial

from pipelines.edge import leave
from pipelines.file_job import common_settings, run_command
from pipelines.options import JobOptions
from pipelines.typed_flags import Classification
from transforms.classify import Classify
from transforms.model_transform import ModelTransform


def classify(options: JobOptions) -> ModelTransform:
    """Documents ─► labels."""
    asked = options.typed
    assert isinstance(asked, Classification)
    return Classify(
        asked.labels,
        options.model,
        options.sampling,
        multiple=asked.multiple,
        threshold=asked.threshold,
        examples=asked.examples,
        template=asked.template,
        **common_settings(options),
    ).as_results()


main = partial(run_command, "classify", classify)
"""Run the job that the flags (default: the command line's) describe; returns the exit status."""


if __name__ == "__main__":
    leave(main())

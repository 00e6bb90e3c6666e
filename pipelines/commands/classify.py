"""Documents from files, with labels and how likely each is, to files.

millrace classify --input 'reviews/*.csv' --labels 'positive,negative' --output out/labels --model org/name
"""

from __future__ import annotations

from functools import partial

from millrace.transforms.classify import Classify
from millrace.transforms.requests.model_transform import ModelTransform

from ..edge import leave
from ..flags.asked import Classification
from ..flags.options import JobOptions
from ..job.file_job import common_settings, run_command


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

"""The runner that a command line names. Where Beam's own of that name would not do, it is ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from millrace.transforms.runners import runner_of

from .job_server import PortableRunner
from .local_runner import FnApiRunner
from .prism import OwnPrism


@contextlib.contextmanager
def named_runner(options: PipelineOptions) -> Iterator[Any]:
    """For as long as its job runs; None is Beam's own."""
    runner = runner_of(options)
    if runner.is_local:
        yield FnApiRunner()
    elif runner.is_on_this_machine:
        with contextlib.closing(OwnPrism()) as prism:
            yield prism
    else:
        yield PortableRunner() if runner.needs_job_endpoint else None

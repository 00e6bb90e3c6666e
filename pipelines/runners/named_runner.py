"""The runner that a command line names; where Beam's own of that name would not do, ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from ..flags.beam import PRISM, runner_name, runs_here
from .local_runner import FnApiRunner
from .portable_runner import PortableRunner
from .prism import OwnPrism


@contextlib.contextmanager
def named_runner(options: PipelineOptions) -> Iterator[Any]:
    """For as long as its job runs; None is Beam's own."""
    if runs_here(options):
        yield FnApiRunner()
    elif runner_name(options) == PRISM.lower():
        with contextlib.closing(OwnPrism()) as prism:
            yield prism
    else:
        yield PortableRunner() if runner_name(options) == "portablerunner" else None

"""The runner that a command line names. Where Beam's own of that name would not do, it is ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle

from millrace.transforms.runners import PORTABLE, PRISM, runner_of

from .job_server import PortableRunner
from .prism import OwnPrism


@contextlib.contextmanager
def named_runner(options: PipelineOptions) -> Iterator[Any]:
    """For as long as its job runs; None is Beam's own."""
    runner = runner_of(options)
    if runner.is_local:
        yield FnApiRunner()
    elif runner is PRISM:
        with contextlib.closing(OwnPrism()) as prism:
            yield prism
    else:
        yield PortableRunner() if runner is PORTABLE else None


class FnApiRunner(fn_runner.FnApiRunner):  # type: ignore[misc, unused-ignore]
    """The runner that DirectRunner comes to in the end, without what that does first: download Prism.

    It tells its worker processes all options of the pipeline. Beam's own tells them what it is given as it is made,
    before any transform has added its part.
    """

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:
        encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
        provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        self._provision_info = fn_runner.ExtendedProvisionInfo(provision)
        return super().run_pipeline(pipeline, options)

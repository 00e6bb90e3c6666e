"""Beam's runner for this machine, without what its DirectRunner does first: download another from the network."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle


class FnApiRunner(fn_runner.FnApiRunner):  # type: ignore[misc, unused-ignore]
    """The runner that DirectRunner comes to in the end; it tells its worker processes all options of the pipeline.

    Beam's own tells them what it is given as it is made, before any transform has added its part.
    """

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:
        encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
        provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        self._provision_info = fn_runner.ExtendedProvisionInfo(provision)
        return super().run_pipeline(pipeline, options)

"""Beam's runner for this machine, without what its DirectRunner does first: download another from the network."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle
from apache_beam.runners.runner import PipelineRunner

from pipelines.beam_flags import runner_name

_LOCAL = ("", "directrunner", "fnapirunner", "switchingdirectrunner")


def runs_here(options: PipelineOptions) -> bool:
    """Whether the job runs on this machine, in this process or those that it starts."""
    return runner_name(options) in _LOCAL


def local_runner() -> Any:
    """The runner that DirectRunner comes to in the end."""
    return _LocalRunner()


class _LocalRunner(PipelineRunner):  # type: ignore[misc, unused-ignore]
    """Beam's, which has the options go to worker processes only if it is told them as it is made."""

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:
        encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())  # with what transforms added
        provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        runner = fn_runner.FnApiRunner(provision_info=fn_runner.ExtendedProvisionInfo(provision))
        return runner.run_pipeline(pipeline, options)

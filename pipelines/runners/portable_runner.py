"""Beam's runner for a job server, such as Prism's or Flink's, whose jobs may last."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability import portable_runner


class PortableRunner(portable_runner.PortableRunner):
    """As Beam's, but for the deadline of a job's news."""

    keeps_unknown_options = False
    """Whether the job server gets flags that Beam does not know."""

    def create_job_service_handle(self, job_service: Any, options: PipelineOptions) -> Any:
        return _JobServiceHandle(job_service, options, self.keeps_unknown_options)


class _JobServiceHandle(portable_runner.JobServiceHandle):
    """A job server has `--job_server_timeout` seconds, 300, for an answer; Beam takes the news of a job for one.

    From a server that knows a job before it runs, as Prism does, they would end then, and the job with them.
    """

    def run(self, preparation_id: str) -> Any:
        self.timeout = None
        return super().run(preparation_id)

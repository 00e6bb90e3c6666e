import json
import os
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions

from millrace.pipelines.runners.job_server import PortableRunner
from millrace.pipelines.runners.named_runner import FnApiRunner, named_runner
from millrace.pipelines.runners.prism import OwnPrism


def named(*flags: str) -> type:
    with named_runner(PipelineOptions(list(flags))) as runner:
        return type(runner)


def test_prism_and_job_servers_have_runners_whose_jobs_last() -> None:
    assert named("--runner=PrismRunner") is OwnPrism
    assert named("--runner=PortableRunner", "--job_endpoint=localhost:8099") is PortableRunner


def test_else_it_is_beams_local_one_or_that_of_the_name() -> None:
    assert named() is FnApiRunner
    assert named("--runner=DirectRunner") is FnApiRunner
    assert named("--runner=direct") is FnApiRunner
    assert named("--runner=FlinkRunner") is type(None)


class _Adding(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """A transform with something to say to workers."""

    def expand(self, pipeline: Any) -> Any:
        pipeline.pipeline.options.view_as(SetupOptions).beam_plugins = ["json"]
        return pipeline | beam.Create([1]) | beam.Map(_plugins) | beam.Map(_assert_told)


def _plugins(_: int) -> Any:
    return json.loads(os.environ["PIPELINE_OPTIONS"])["beam:option:beam_plugins:v1"]


def _assert_told(plugins: Any) -> None:
    assert plugins == ["json"]


def test_worker_processes_are_told_what_transforms_add_to_the_options() -> None:
    flags = ["--direct_running_mode=multi_processing", "--direct_num_workers=1", "--pickle_library=cloudpickle"]
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(flags)) as pipeline:
        _ = pipeline | _Adding()


def test_only_the_news_of_a_job_have_no_deadline() -> None:
    for runner in (PortableRunner(), OwnPrism()):
        handle = runner.create_job_service_handle(_Served(), PipelineOptions(["--job_server_timeout=7"]))
        assert handle.timeout == 7
        handle.run("job")
        assert handle.timeout is None


class _Served:
    """A job server that knows a job before it runs."""

    def GetStateStream(self, _request: object, timeout: float | None) -> object:  # noqa: N802
        assert timeout is None
        return iter(["STOPPED"])

    def GetMessageStream(self, _request: object, timeout: float | None) -> object:  # noqa: N802
        assert timeout is None
        return iter([])

    def Run(self, _request: object) -> object:  # noqa: N802
        return type("Response", (), {"job_id": "job"})()

from apache_beam.options.pipeline_options import PipelineOptions

from millrace.pipelines.runners.job_server import PortableRunner
from millrace.pipelines.runners.local_runner import FnApiRunner
from millrace.pipelines.runners.named_runner import named_runner
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

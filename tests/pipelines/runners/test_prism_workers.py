"""What a stream's own Prism opens to whom."""

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2

from millrace.pipelines.runners.prism import OwnPrism
from tests.servers.processes import listening


def test_no_other_machine_reaches_the_workers() -> None:
    pipeline = beam_runner_api_pb2.Pipeline()
    for name in ("one", "two"):
        pipeline.components.environments[name].urn = python_urns.EMBEDDED_PYTHON_LOOPBACK
    pipeline.components.environments["other"].urn = "its own"
    before = listening()
    ends = OwnPrism.start_and_replace_loopback_environments(pipeline, PipelineOptions([]))
    try:
        opened = listening() - before
    finally:
        for end in ends:
            end().wait()
    assert {host for host, _ in opened} == {"127.0.0.1"}
    found = pipeline.components.environments
    assert found["other"].urn == "its own"
    for name in ("one", "two"):
        assert found[name].urn == common_urns.environments.EXTERNAL.urn
        endpoint = beam_runner_api_pb2.ExternalPayload.FromString(found[name].payload).endpoint.url
        assert tuple(endpoint.rsplit(":", 1)) in {(host, str(port)) for host, port in opened}


def test_a_pipeline_whose_workers_are_elsewhere_opens_nothing() -> None:
    pipeline = beam_runner_api_pb2.Pipeline()
    pipeline.components.environments["other"].urn = "its own"
    before = listening()
    assert OwnPrism.start_and_replace_loopback_environments(pipeline, PipelineOptions([])) == []
    assert listening() <= before, "a server of an earlier test may close meanwhile"

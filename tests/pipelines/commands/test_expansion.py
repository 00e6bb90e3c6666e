"""The expansion service, asked by Python as any other language would ask it."""

from collections.abc import Iterator

import apache_beam as beam
import pytest
from apache_beam.transforms.external import ExternalTransform, ImplicitSchemaPayloadBuilder

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.commands.expansion import URNS, serving
from tests.transforms.running import check, pipeline

GENERATE = "millrace:transform:generate:v1"


@pytest.fixture
def service() -> Iterator[str]:
    with serving("127.0.0.1", 0, []) as address:
        yield address


def payload(**settings: object) -> bytes:
    encoded: bytes = ImplicitSchemaPayloadBuilder(settings).payload()
    return encoded


@pytest.mark.usefixtures("runtime")
def test_a_transform_is_expanded_by_its_urn_and_runs_in_the_services_workers(service: str) -> None:
    settings = payload(
        prompt_field="question",
        sampling=beam.Row(max_tokens=3),
        engine=beam.Row(backend="fake"),
        manager=beam.Row(linger=0.5),
    )
    with pipeline() as p:
        rows = p | beam.Create([beam.Row(number=1, question="one"), beam.Row(number=2, question="two")])
        answered = rows | ExternalTransform(GENERATE, settings, service)
        found = answered | beam.Map(
            lambda row: (row.number, bool(row.completion.text), row.completion.completion_tokens)
        )
        check(found, lambda found: sorted(found) == [(1, True, 3), (2, True, 3)])


@pytest.mark.parametrize("urn", URNS)
def test_a_wrong_setting_is_told_to_who_asks(service: str, urn: str) -> None:
    p = beam.Pipeline()
    rows = p | beam.Create([beam.Row(prompt="one")])
    with pytest.raises(RuntimeError, match="unknown setting 'modle': did you mean model"):
        rows | ExternalTransform(urn, payload(modle="m"), service)


@pytest.mark.parametrize(
    "name",
    [
        "subprocess.run",
        "millrace.transforms.beam_rows.row_transforms.beam.Map",
        "millrace.transforms.beam_rows.row_transforms.msgspec.json.encode",
        "millrace.transforms.beam_rows.row_transforms.GenerateRows.__init__.__globals__.get",
        "__constructor__",
    ],
)
def test_nothing_else_of_the_process_can_be_called(service: str, name: str) -> None:
    p = beam.Pipeline()
    asked = payload(constructor=name, args=beam.Row(a="true"))
    with pytest.raises(RuntimeError, match="not allowed"):
        p | beam.Create([1]) | ExternalTransform("beam:transforms:python:fully_qualified_named", asked, service)


def test_a_transform_is_expanded_by_its_name_as_java_asks_for_it(service: str) -> None:
    p = beam.Pipeline()
    asked = payload(constructor="millrace.transforms.beam_rows.row_transforms.GenerateRows", kwargs=beam.Row(modle="m"))
    with pytest.raises(RuntimeError, match="unknown setting 'modle'"):
        (
            p
            | beam.Create([beam.Row(prompt="a")])
            | ExternalTransform("beam:transforms:python:fully_qualified_named", asked, service)
        )


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_an_address_that_runners_cannot_reach_is_refused_where_they_were_to_come_here(host: str) -> None:
    with pytest.raises(ConfigError, match="environment_type"), serving(host, 0, []):
        pass
    with serving("0.0.0.0", 0, ["--environment_type=LOOPBACK"]) as address:
        assert address.startswith("0.0.0.0:")

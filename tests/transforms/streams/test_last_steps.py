from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from millrace.pipelines.runners.prism import OwnPrism
from millrace.transforms.elements.completions import DeadLetter
from millrace.transforms.streams.kafka import WriteKafka


def steps(runner: Any, write: beam.PTransform) -> list[str]:
    pipeline = beam.Pipeline(runner=runner)
    letter = DeadLetter(id="a", error="E", reason="r")
    pipeline | beam.Create([letter]) | "Write" >> write
    found = pipeline.to_runner_api().components.transforms.values()
    return [step.unique_name for step in found if step.unique_name.startswith("Write/") and not step.subtransforms]


@pytest.mark.parametrize("runner", [PrismRunner(), OwnPrism()])
def test_on_prism_a_grouping_wants_what_a_topic_gives(runner: Any) -> None:
    assert "Write/Group" in steps(runner, WriteKafka("kafka:one:9092/t"))
    assert steps(runner, WriteKafka("kafka:one:9092/t").with_exception_handling()) == ["Write/Send"]


def test_elsewhere_it_ends_with_the_topic() -> None:
    assert steps(PortableRunner(), WriteKafka("kafka:one:9092/t")) == ["Write/Send"]

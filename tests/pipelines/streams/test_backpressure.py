"""A producer that is faster than the engine."""

from pathlib import Path

import pytest

from benchmarks.backpressure import KafkaBroker, PubSubBroker, Report, measure
from tests.servers.kafka import Kafka
from tests.servers.prism import prism
from tests.servers.pubsub import PubSub

pytestmark = [pytest.mark.runners, pytest.mark.slow]


@pytest.mark.timeout(2400)
def test_of_a_topic_the_job_takes_only_what_its_engine_can_do(broker: Kafka, tmp_path: Path) -> None:
    holds_back(measure(KafkaBroker(broker), tmp_path, prism(), seconds=10, engine=20, producer=400))


@pytest.mark.timeout(2400)
def test_of_a_subscription_the_job_takes_only_what_its_engine_can_do(server: PubSub, tmp_path: Path) -> None:
    report = measure(PubSubBroker(server), tmp_path, prism(), seconds=10, engine=20, producer=400)
    holds_back(report)
    assert report.most_held < 500


def holds_back(report: Report) -> None:
    """Nothing is lost, and what the engine cannot do is still at the source: the job has not even read it.

    Memory tells in minutes, not in seconds, in which late imports are all of its growth.
    """
    assert report.lost == 0
    assert report.backlog > 0.8 * report.sent
    assert 0 < report.most_read_ahead < 500

from collections.abc import Iterator

import pytest

from tests.servers.kafka import Kafka, kafka
from tests.servers.pubsub import PubSub, pubsub


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubSub]:
    with pubsub(tmp_path_factory.mktemp("pubsub")) as running:
        yield running

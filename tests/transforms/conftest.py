from collections.abc import Iterator

import pytest

from tests import quick_beam
from tests.transforms.clients import RecordingClient

quick_beam.compute_once()


@pytest.fixture
def recorded() -> Iterator[list[tuple[str, str]]]:
    """What is done with RecordingClients."""
    RecordingClient.log.clear()
    RecordingClient.held.clear()
    yield RecordingClient.log
    RecordingClient.log.clear()

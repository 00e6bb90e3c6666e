from collections.abc import Iterator

import pytest

from tests import beam_signatures
from tests.transforms.clients import RecordingClient

beam_signatures.read_once()


@pytest.fixture
def recorded() -> Iterator[list[tuple[str, str]]]:
    """What is done with RecordingClients."""
    RecordingClient.log.clear()
    RecordingClient.held.clear()
    yield RecordingClient.log
    RecordingClient.log.clear()

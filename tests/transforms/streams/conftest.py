import threading
from collections.abc import Iterator

import pytest

from tests.servers.prism import prism_server

_READER = "read_state"
"""Beam's thread in a worker that reads from the runner; it ends with an exception when the runner is gone."""


@pytest.fixture(scope="session")
def prism(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Endpoint of a Prism, whose workers are threads of this process."""
    with pytest.MonkeyPatch.context() as patch:
        with prism_server(tmp_path_factory.mktemp("prism")) as endpoint:
            yield endpoint
            patch.setattr(threading, "excepthook", lambda _: None)
        for thread in threading.enumerate():
            if thread.name == _READER:
                thread.join(10)

"""Servers that all tests of a test process share: a server, its manager and its engine start once."""

from collections.abc import Iterator

import pytest

from tests.serving.servers import Server, fake_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Answers at once, with tokens that no model chose."""
    with fake_server(tmp_path_factory.mktemp("serve") / "rt") as started:
        yield started


@pytest.fixture(scope="session")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Takes 50 ms a token, for four requests at once."""
    with fake_server(tmp_path_factory.mktemp("serve") / "rt", "--max_num_seqs", "4", step=0.05) as started:
        yield started

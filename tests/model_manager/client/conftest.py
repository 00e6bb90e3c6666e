"""Fixtures of the client's tests."""

from collections.abc import Iterator

import pytest

from millrace.model_manager.client.election import MANAGER_COMMAND
from tests.model_manager.manager.machine import MANAGER, Machine, machine, standing

__all__ = ["machine"]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The shipped manager and torch-free engine, for tests that end neither."""
    with standing(tmp_path_factory.mktemp("shipped"), MANAGER_COMMAND) as machine:
        yield machine


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The stand-in, likewise."""
    with standing(tmp_path_factory.mktemp("stand-in"), MANAGER) as machine:
        yield machine

"""What may happen to a request whose answer has a body: once, and for good."""

import pytest

from tests.servers.faulty_http import Altered, Fault, Lost, Reset, Slow, Status, Truncated

PASSING: list[Fault] = [
    Status(500),
    Status(503),
    Status(429),
    Lost(),
    Reset(1000),
    Truncated(1000, "whole"),
    Truncated(1000, "part"),
    Truncated(0, "part"),
    Truncated(1000, "none"),
    Altered(),
    Slow(0.1),
]
"""Faults that are over when the request is made again."""

LASTING: list[Fault] = [Status(503), Status(403), Lost(), Truncated(0, "part"), Altered()]
"""Faults that leave nothing to read, however often it is tried."""

ALL_LASTING = pytest.mark.parametrize("fault", LASTING, ids=repr)

CLOUD_STORAGE = [
    pytest.mark.runners,
    # Google's client leaves the sockets of answers that it did not like to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of every test here."""

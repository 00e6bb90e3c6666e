"""DoFns with a connection to a broker, opened once in a process."""

from __future__ import annotations

from typing import Generic, TypeVar

import apache_beam as beam
from apache_beam.utils.shared import Shared

Address = TypeVar("Address")
Connection = TypeVar("Connection")


class ConnectedDoFn(beam.DoFn, Generic[Address, Connection]):
    """A DoFn whose copies in one process share a connection."""

    def __init__(self, address: Address) -> None:
        """`address`: the source, or the topic to write to."""
        self._address = address
        self._shared = Shared()

    def setup(self) -> None:
        self._connection: Connection = self._shared.acquire(self.connect)

    def connect(self) -> Connection:
        """Open this process's connection."""
        raise NotImplementedError(type(self).__name__)

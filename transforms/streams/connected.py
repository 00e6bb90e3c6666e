"""DoFns that speak to a broker: what they speak by is opened once in a process."""

from __future__ import annotations

from typing import Generic, TypeVar

import apache_beam as beam
from apache_beam.utils.shared import Shared

Address = TypeVar("Address")
Connection = TypeVar("Connection")


class ConnectedDoFn(beam.DoFn, Generic[Address, Connection]):
    """Has a connection, which all its copies in a process share."""

    def __init__(self, address: Address) -> None:
        """`address`: of a source, or of a topic to write to."""
        self._address = address
        self._shared = Shared()

    def setup(self) -> None:
        self._connection: Connection = self._shared.acquire(self.connect)

    def connect(self) -> Connection:
        """What this process speaks by."""
        raise NotImplementedError(type(self).__name__)

"""One question to a manager, over a connection of its own. Whoever asks neither starts a manager nor keeps it alive."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TypeVar

from ..wire.errors import ManagerUnavailable
from ..wire.manager_place import ManagerPlace
from ..wire.messages import PROTOCOL, Hello, ManagerToClient, Message, Refused
from ..wire.runtime import RuntimeDir
from ..wire.tcp import Unreachable
from ..wire.transport import Connection, ConnectionLost

ANSWER_WITHIN = 5.0
"""Seconds."""


class Ending(ManagerUnavailable):
    """The manager says that it is ending, or closes the connection."""


_Reply = TypeVar("_Reply", bound=Message)


def ask(place: ManagerPlace, question: Message, answer: type[_Reply], within: float | None = None) -> _Reply | None:
    """What the manager answers; None if none runs on this machine. Raises ManagerUnavailable if it does not answer
    within so many seconds, by default ANSWER_WITHIN; Ending if it is about to end.
    """
    within = ANSWER_WITHIN if within is None else within
    deadline = time.monotonic() + within
    with _observing(place, within) as connection:
        if connection is None:
            return None
        try:
            connection.send(Hello(protocol=PROTOCOL, pid=os.getpid(), observer=True))
            connection.send(question)
            while True:
                match connection.receive():
                    case Refused(error):
                        is_ending = isinstance(error.exception(), ManagerUnavailable)
                        raise (Ending if is_ending else ManagerUnavailable)(error.message)
                    case message if isinstance(message, answer):
                        return message
                    case _:
                        pass
        except ConnectionLost as error:
            lost = Ending if time.monotonic() < deadline else ManagerUnavailable
            raise lost(f"the manager {where(place)} does not answer: {error}") from None


def where(place: ManagerPlace) -> str:
    """The place as the end of a sentence: `in FOLDER` or `at ADDRESS`."""
    return f"in {place.path}" if isinstance(place, RuntimeDir) else f"at {place}"


@contextlib.contextmanager
def _observing(place: ManagerPlace, within: float) -> Iterator[Connection[ManagerToClient] | None]:
    connection = _connected(place)
    if connection is None:
        yield None
        return
    connection.limit_waits(within)
    try:
        yield connection
    finally:
        connection.close()


def _connected(place: ManagerPlace) -> Connection[ManagerToClient] | None:
    if isinstance(place, RuntimeDir):
        sock = place.connect() if place.check() else None
        return None if sock is None else Connection(sock, ManagerToClient)
    try:
        sock, tls = place.connect()
    except Unreachable as error:
        raise ManagerUnavailable(f"no manager answers {where(place)}: {error}") from None
    return Connection(sock, ManagerToClient, tls)

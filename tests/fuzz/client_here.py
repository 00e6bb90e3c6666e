"""A real client's session on threads of this process, whose manager says what a fuzz input says."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any
from unittest import mock

from millrace.model_manager.client import attempts
from millrace.model_manager.client.session import Session, WouldWait
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ManagerUnavailable, MillraceError
from millrace.model_manager.wire.messages import (
    PROTOCOL,
    Credits,
    ManagerToClient,
    ModelReady,
    OpenModel,
    Welcome,
)
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.transport import Connection, encode
from tests.fuzz.target import Defect
from tests.model_manager.model_infos import model_info

CONFIG = ModelConfig(backend="fake")
GREETING = encode(Welcome(PROTOCOL, 1)) + encode(ModelReady(CONFIG.key, model_info(), [])) + encode(Credits("", 9))
_SETTINGS = ManagerConfig(heartbeat=1e6, hang_timeout=1e6)
"""Nobody looks whether the other side lives: it is here."""
_WITHIN = 60.0


class _OneManager:
    """In the place of an election: finds one manager, and then none."""

    def __init__(self, connection: Connection[ManagerToClient]) -> None:
        self._connection: Connection[ManagerToClient] | None = connection

    def connect(self, _give_up: threading.Event) -> Connection[ManagerToClient]:
        found, self._connection = self._connection, None
        if found is None:
            raise ManagerUnavailable("there is no other")
        return found

    def fence(self) -> None:
        """Nobody else can have its place."""


def requests() -> list[Request]:
    """What the client asks; the names are those in the seeds."""
    plain, logprobs = SamplingParams(max_tokens=4), SamplingParams(max_tokens=4, logprobs=2)
    streamed = Request("c", [1, 2], plain, stream=True)
    return [Request("a", [1], plain), Request("b", [1, 2], logprobs, stream=True), streamed, Request("r", [3], plain)]


def tell_client(data: bytes, *, is_greeted: bool) -> None:
    """Let a manager say these bytes, after a greeting that makes the client ask, and end. Raises Defect unless each
    future is completed, with an answer or an error of the product's, or if a thread of the client fails.
    """
    failed: list[Any] = []
    hook, threading.excepthook = threading.excepthook, failed.append
    ours, theirs = socket.socketpair()
    try:
        with mock.patch.object(attempts, "_LONGEST_PAUSE", 0.0):
            _talk(ours, theirs, data, is_greeted=is_greeted)
    finally:
        threading.excepthook = hook
    if failed:
        raise failed[0].exc_value


def _talk(ours: socket.socket, theirs: socket.socket, data: bytes, *, is_greeted: bool) -> None:
    session = Session(OpenModel(CONFIG, ""), _OneManager(Connection(theirs, ManagerToClient)), _SETTINGS, None)  # type: ignore[arg-type]
    with ours:
        futures = _converse(session, ours, data, is_greeted=is_greeted)
    _check(futures)
    session.close()


def _converse(session: Session, sock: socket.socket, data: bytes, *, is_greeted: bool) -> list[Future[Any]]:
    futures: list[Future[Any]] = []
    if is_greeted:
        sock.sendall(GREETING)
        session.wait_until_ready()
        while not session._limit:
            threading.Event().wait(0.0001)
        for request in requests():
            futures.append(session.send_at_once(request, (lambda _: None) if request.stream else None))
        session.flush_at_once()
    sender = threading.Thread(target=_send, args=(sock, data))
    sender.start()
    if not is_greeted:
        futures += _asked_in_vain(session)
    sender.join()
    return futures


def _asked_in_vain(session: Session) -> list[Future[Any]]:
    try:
        session.wait_until_ready()
        return [session.send_at_once(requests()[0])]
    except (MillraceError, WouldWait):
        return []


def _send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the client has had enough


def _check(futures: list[Future[Any]]) -> None:
    if wait_for(futures, _WITHIN).not_done:
        raise Defect(f"a request has no answer after {_WITHIN:g} s")
    for future in futures:
        error = future.exception()
        if error is not None and (not isinstance(error, MillraceError) or "the client failed" in str(error)):
            raise error

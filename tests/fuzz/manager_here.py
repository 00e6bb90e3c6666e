"""A real manager on a thread of this process, with engines that answer at once in the place of processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Sequence

from millrace.model_manager.manager import server as server_module
from millrace.model_manager.manager.server import ManagerServer
from millrace.model_manager.manager.supervisor import EngineName
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.engine_messages import EngineReady, StepReport
from millrace.model_manager.wire.errors import ErrorInfo
from millrace.model_manager.wire.messages import AdapterFound, Cancel, Message, Submit
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.timings import Timings
from tests.fuzz.target import Defect
from tests.model_manager.model_infos import model_info

_SETTINGS = ManagerConfig(linger=1e6, idle_timeout=1e6, hang_timeout=20, heartbeat=1e6)
_WITHIN = 60.0
_LOOK = 0.05
_MOST_BYTES = 2**26


class _Engines:
    """In the place of a Supervisor: an engine is ready as it starts, and answers as it is asked."""

    def __init__(self, server: ManagerServer) -> None:
        self._server = server
        self._alive: set[EngineName] = set()

    def pids(self) -> dict[EngineName, int]:
        return dict.fromkeys(self._alive, 1)

    def start(self, name: EngineName, config: ModelConfig, folder: str, _gpus: Sequence[str] = ()) -> None:
        self._alive.add(name)
        info = model_info(name=config.model, folder=folder, max_num_seqs=config.max_num_seqs)
        self._soon(name, EngineReady(info))

    def send(self, name: EngineName, message: Message) -> None:
        match message:
            case Submit(_, requests):
                self._soon(name, StepReport([_answer(each.request_id) for each in requests]))
            case Cancel(_, names):
                self._soon(name, StepReport([_answer(each, FinishReason.ABORT) for each in names]))

    def stop(self, name: EngineName) -> None:
        self._alive.discard(name)

    async def close(self) -> None:
        self._alive.clear()

    def _soon(self, name: EngineName, message: EngineReady | StepReport) -> None:
        asyncio.get_running_loop().call_soon(self._say, name, message)

    def _say(self, name: EngineName, message: EngineReady | StepReport) -> None:
        if name in self._alive:
            self._server.engine_said(name, message)


def _answer(name: str, reason: FinishReason = FinishReason.LENGTH) -> Output:
    return Output(name, [1], reason, Timings(0.0, 0.0, 0.0), prompt_tokens=1)


class ManagerHere:
    """Started with the first connection, and again if a client has ended it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._address: bytes = b""
        self._error: BaseException | None = None

    def said(self, data: bytes) -> bytes:
        """What the manager says to a client that sends these bytes, and then no more. Raises the manager's own error,
        or Defect if it does not end the connection.
        """
        with self._connected() as sock:
            sock.settimeout(_LOOK)
            sender = threading.Thread(target=_send, args=(sock, data))
            sender.start()
            try:
                heard = self._heard(sock)
            finally:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sender.join()
        if self._error is not None:
            error, self._error, self._thread = self._error, None, None
            raise error
        return heard

    def _connected(self) -> socket.socket:
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(self._started())
            except ConnectionRefusedError:  # it is ending
                sock.close()
                assert self._thread is not None
                self._thread.join(_WITHIN)
            else:
                return sock

    def _heard(self, sock: socket.socket) -> bytes:
        heard, waited = bytearray(), 0.0
        while waited < _WITHIN and len(heard) <= _MOST_BYTES:
            try:
                data = sock.recv(65536)
            except TimeoutError:
                waited += _LOOK
                if self._thread is not None and self._thread.is_alive():
                    continue
                data = b""  # a process would have closed its sockets by its end
            except ConnectionError:  # it did not read all that was sent
                data = b""
            if not data:
                return bytes(heard)
            heard += data
        raise Defect(f"the connection has not ended after {waited:g} s and {len(heard)} bytes")

    def _started(self) -> bytes:
        if self._thread is None or not self._thread.is_alive():
            logging.disable(logging.CRITICAL)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind("")  # Linux chooses a name that is no file
            listening.listen(64)
            self._address = listening.getsockname()
            self._thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
            self._thread.start()
        return self._address

    def _run(self, listening: socket.socket) -> None:
        try:
            asyncio.run(_serve(listening))
        except BaseException as error:
            self._error = error
        finally:
            listening.close()


async def _serve(listening: socket.socket) -> None:
    vars(server_module)["found_adapter"] = lambda name: AdapterFound(
        error=ErrorInfo("ModelNotFound", name)
    )  # asks no hub
    server = ManagerServer(_SETTINGS)
    server._supervisor = _Engines(server)  # type: ignore[assignment]
    await server.run(listening)


def _send(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)


def _no_adapter(name: str) -> AdapterFound:
    """In the place of a search, which asks a hub."""
    return AdapterFound(error=ErrorInfo("ModelNotFound", name))

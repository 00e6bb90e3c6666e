"""Bytes on a connection: for the decoders, a real manager and a real client.

The first byte of an input says for whom the others are.
"""

from __future__ import annotations

import random
import socket
from typing import Any

import msgspec

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.engine_messages import (
    CacheResized,
    EngineFailed,
    EngineMessage,
    EngineReady,
    Heartbeat,
    ManagerToEngine,
    ResizeCache,
    Shutdown,
    StartEngine,
    StepReport,
)
from millrace.model_manager.wire.errors import ErrorInfo
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.messages import (
    PROTOCOL,
    AdapterFound,
    Cancel,
    ClientMessage,
    CloseModel,
    Credits,
    FindAdapter,
    GetStatus,
    Hello,
    ManagerToClient,
    Message,
    ModelFailed,
    ModelReady,
    ModelWarnings,
    OpenModel,
    Ping,
    Pong,
    Progress,
    Refused,
    Results,
    Status,
    StopModels,
    Submit,
    Welcome,
)
from millrace.model_manager.wire.request import Adapter, Failure, FinishReason, NewTokens, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import EngineStats
from millrace.model_manager.wire.timings import Timings
from millrace.model_manager.wire.transport import Connection, ConnectionLost, ProtocolError, encode
from tests.fuzz.client_here import CONFIG, requests, tell_client
from tests.fuzz.frames import changed
from tests.fuzz.manager_here import ManagerHere
from tests.fuzz.target import Defect, Target
from tests.model_manager.model_infos import model_info

_MANAGER, _GREETED_MANAGER, _CLIENT, _GREETED_CLIENT, _DECODERS = range(5)
_manager = ManagerHere()
_TIMINGS = Timings(0.0, 0.0, 0.0)
_UNIONS = (ClientMessage, ManagerToClient, ManagerToEngine, EngineMessage)


def run(data: bytes) -> None:
    """Whatever comes ends its connection alone."""
    whom, data = data[0] % 5 if data else _DECODERS, data[1:]
    if whom in (_CLIENT, _GREETED_CLIENT):
        tell_client(data, is_greeted=whom == _GREETED_CLIENT)
    elif whom == _DECODERS:
        for union in _UNIONS:
            _decode(data, union)
    else:
        hello = encode(Hello(PROTOCOL, 1)) if whom == _GREETED_MANAGER else b""
        _check_whole(_manager.said(hello + data))


def _decode(data: bytes, union: Any) -> list[Any]:
    """The messages; each is the same when it is encoded and decoded again."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(data) + 4096)
    messages: list[Any] = []
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        connection: Connection[Any] = Connection(theirs, union)
        decoder = msgspec.msgpack.Decoder(union)
        try:
            while True:
                message = connection.receive()
                messages.append(message)
                again = encode(message)[4:]
                if msgspec.msgpack.encode(decoder.decode(again)) != again:
                    raise Defect(f"{message!r} is another message after the wire")
        except (ConnectionLost, ProtocolError):
            connection.close()
    return messages


def _check_whole(data: bytes) -> None:
    """What a manager says are messages, but for one that is cut where the connection ended."""
    length = 0
    while len(data) >= 4 and len(data) >= 4 + (length := int.from_bytes(data[:4], "big")):
        msgspec.msgpack.decode(data[4 : 4 + length], type=ManagerToClient)
        data = data[4 + length :]


def _samples() -> list[Message]:
    params = SamplingParams(max_tokens=4, logprobs=1, stop=("x",))
    long = Request("b", [1, 2], params, job="j", output_token_ids=[3], family="b", adapter=Adapter("n", "/n", "d"))
    texts = Request("t", [], SamplingParams(), text="hello", messages=[{"role": "user", "content": "x"}])
    score, embed = (
        Request("s", [1, 2], SamplingParams(), task="score", score_from=1),
        Request("e", [1], params, task="embed"),
    )
    output = Output("a", [1, 2, 3, 4], FinishReason.LENGTH, _TIMINGS, prompt_tokens=1)
    logprobs = Logprobs([-0.5], [True], [[1, 2]], [[-0.5, -1.0]])
    full = Output("b", [1], FinishReason.STOP, _TIMINGS, 2, stop_reason="x", embedding=b"\0\0\0\0", logprobs=logprobs)
    error = ErrorInfo("EngineLost", "it died")
    engine = ManagerConfig(linger=1)
    return [
        Hello(PROTOCOL, 1),
        OpenModel(CONFIG, "/tmp"),
        OpenModel(ModelConfig(backend="fake", max_num_seqs=2, num_engines=2), "/", engine, "k", "t", "r"),
        Submit(CONFIG.key, requests()),
        Submit(CONFIG.key, [long, texts, score, embed]),
        Cancel(CONFIG.key, ["a", "b"]),
        FindAdapter("n"),
        CloseModel(CONFIG.key),
        Ping(),
        GetStatus(),
        StopModels(CONFIG.key),
        StopModels(),
        Welcome(PROTOCOL, 1),
        Refused(error),
        ModelReady(CONFIG.key, model_info(), []),
        ModelFailed(CONFIG.key, error),
        ModelWarnings(CONFIG.key, ["w"]),
        AdapterFound(Adapter("n", "/n", "d")),
        Credits(CONFIG.key, 4),
        Progress(CONFIG.key, [NewTokens("c", 0, [1, 2]), NewTokens("b", 0, [1])]),
        Results(CONFIG.key, [output, full], [Failure("c", error, [1])]),
        Results(CONFIG.key, [Output("r", [1], FinishReason.ABORT, _TIMINGS, 1)]),
        Pong({"a": 3}),
        Status(1, 2.0, [], [], []),
        StartEngine(CONFIG, "/", 1.0),
        Shutdown(),
        EngineReady(model_info()),
        EngineFailed(error),
        StepReport([output], [Failure("c", error)], {"b": [1]}, EngineStats()),
        Heartbeat(1, 0.0, ["w"]),
        ResizeCache(4096),
        CacheResized(4096),
    ]


def _seeds() -> list[bytes]:
    frames = [encode(each) for each in _samples()]
    client, manager = b"".join(frames[1:10]), b"".join(frames[18:23])
    return [
        bytes([_MANAGER]) + frames[0] + client,
        bytes([_GREETED_MANAGER]) + client,
        bytes([_GREETED_MANAGER]) + client + frames[11],
        bytes([_CLIENT]) + frames[12] + frames[14] + manager,
        bytes([_GREETED_CLIENT]) + manager,
        bytes([_GREETED_CLIENT]) + frames[20] + frames[21],
        bytes([_DECODERS]) + b"".join(frames),
    ]


_BODIES = [encode(each)[4:] for each in _samples()]


def mutate(data: bytes, source: random.Random) -> bytes:
    """Change a frame, or for whom they all are."""
    whom = data[:1] if source.random() < 0.9 else bytes([source.randrange(5)])
    return whom + changed(data[1:], source, _BODIES)


TARGET = Target(run, mutate, _seeds(), seconds=10, memory=2048)

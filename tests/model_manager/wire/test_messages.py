"""Every message arrives as it was sent, and only at an end that accepts it."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.wire import messages
from millrace.model_manager.wire.engine_messages import EngineMessage, ManagerToEngine
from millrace.model_manager.wire.messages import ClientMessage, ManagerToClient, Message
from millrace.model_manager.wire.request_counts import RequestCounts
from millrace.model_manager.wire.status import EngineStats, ModelStatus
from tests.model_manager.wire.instances import of_type

DIRECTIONS = {
    "client to manager": ClientMessage,
    "manager to client": ManagerToClient,
    "manager to engine": ManagerToEngine,
    "engine to manager": EngineMessage,
}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_messages_arrive_as_they_were_sent(direction: str) -> None:
    accepted: Any = DIRECTIONS[direction]
    decoder = msgspec.msgpack.Decoder(accepted)

    @settings(max_examples=100)
    @given(of_type(accepted))
    def arrives(message: Message) -> None:
        assert decoder.decode(msgspec.msgpack.encode(message)) == message

    arrives()


def test_every_message_has_a_direction() -> None:
    sent = {kind for union in DIRECTIONS.values() for kind in get_args(union)}
    assert sent == set(Message.__subclasses__())


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_messages_of_another_direction_are_not_accepted(direction: str) -> None:
    accepted: Any = DIRECTIONS[direction]
    decoder = msgspec.msgpack.Decoder(accepted)
    others = [kind for kind in Message.__subclasses__() if kind not in get_args(accepted)]

    @settings(max_examples=60)
    @given(st.one_of([of_type(kind) for kind in others]))
    def refused(message: Message) -> None:
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(msgspec.msgpack.encode(message))

    refused()


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        messages.Welcome(protocol=1, pid=1).pid = 2  # type: ignore[misc]


def test_default_lists_are_not_shared() -> None:
    first = messages.Results(key="a")
    first.outputs.append(None)  # type: ignore[arg-type]
    assert messages.Results(key="b").outputs == []


def test_a_status_with_a_source_of_requests_that_is_not_known_here_is_read() -> None:
    model = ModelStatus("k", "m", "ready", [], 0, 0, 0, None, EngineStats(), requests={"job": RequestCounts()})
    told = msgspec.to_builtins(messages.Status(1, 2.0, [model], [], []))
    told["models"][0]["requests"]["of another version"] = {"answers": {"stop": 3}}
    (read,) = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=messages.Status).models
    assert read.requests["of another version"].answers == {"stop": 3}

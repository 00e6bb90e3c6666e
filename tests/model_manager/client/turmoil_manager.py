"""A manager in turmoil, which never breaks the protocol, and what a session asks of it."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.messages import (
    PROTOCOL,
    Cancel,
    ClientMessage,
    CloseModel,
    Hello,
    OpenModel,
    Ping,
    Submit,
)
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings
from tests.model_manager.memory_pipes import ClientSocket

CONFIG = ModelConfig(backend="fake")


WHOLE = 4
"""Tokens of a whole answer."""


def request(number: int, *, other: bool = False, stream: bool = False) -> Request:
    return Request(f"r{number}", [number, int(other)], SamplingParams(max_tokens=WHOLE), stream=stream)


def answer(prompt: list[int]) -> list[int]:
    return [100 * prompt[0] + 10 * prompt[1] + index for index in range(WHOLE)]


@dataclass
class Owed:
    """A submit that the manager has not answered, in the order in which they came."""

    request: Request
    tokens: list[int]
    is_cancelled: bool = False


class Manager:
    """What a manager knows of its one client: what it owes. It never breaks the protocol."""

    def __init__(self, sock: ClientSocket) -> None:
        self.sock = sock
        self.owed: list[Owed] = []
        self.limit = 0
        self.said_hello = self.is_opened = self.is_ready = False
        self.pings = 0

    def take(self, message: ClientMessage) -> None:
        match message:
            case Hello(protocol):
                assert not self.said_hello
                assert protocol == PROTOCOL
                self.said_hello = True
            case OpenModel(config):
                assert self.said_hello
                assert config == CONFIG
                self.is_opened = True
            case Submit(_, requests):
                assert self.is_ready, "a request before the model is ready"
                for each in requests:
                    assert not any(
                        owed.request.request_id == each.request_id and not owed.is_cancelled for owed in self.owed
                    ), "submitted twice"
                    assert each.output_token_ids == answer(each.prompt_token_ids)[: len(each.output_token_ids)]
                    self.owed.append(Owed(each, list(each.output_token_ids)))
            case Cancel(_, names):
                for owed in self.owed:
                    owed.is_cancelled |= owed.request.request_id in names
            case Ping():
                self.pings += 1
            case CloseModel():
                pass
            case _:
                raise AssertionError(f"{message} is no message of a session")


def output(name: str, tokens: list[int], reason: FinishReason) -> Output:
    return Output(name, tokens, reason, Timings(0, 0, 0), prompt_tokens=2)

"""Decisions of the router for the server to carry out: messages to send, engines to start and to stop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ..wire.batching import failure_batches, output_batches
from ..wire.config import ModelConfig
from ..wire.messages import Message, Results
from ..wire.request import Failure, Output


@dataclass(frozen=True)
class ToClient:
    """Send a message to a client."""

    client: int
    message: Message


@dataclass(frozen=True)
class ToEngine:
    """Send a message to one of a model's engines."""

    key: str
    message: Message
    engine: int = 0


@dataclass(frozen=True)
class Start:
    """Start one of a model's engines."""

    key: str
    config: ModelConfig
    folder: str
    engine: int = 0
    gpus: tuple[str, ...] = ()
    """GPUs for this engine alone, as CUDA_VISIBLE_DEVICES names them."""


@dataclass(frozen=True)
class Stop:
    """End one of a model's engines. The server reports no further event of this engine."""

    key: str
    engine: int = 0


Effect = ToClient | ToEngine | Start | Stop


class Outbox:
    """Effects in order. Answers come first, in order; they are gathered, so that a client gets few messages.

    A client that cancels an id and submits it again thus gets the first one's answer before tokens of the second.
    """

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._answers: dict[tuple[int, str], list[Output | Failure]] = {}

    def add(self, effect: Effect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def to_client(self, client: int, message: Message) -> None:
        """One more message to a client."""
        self._effects.append(ToClient(client, message))

    def answer(self, client: int, key: str, answer: Output | Failure) -> None:
        """One more answer to a client."""
        self._answers.setdefault((client, key), []).append(answer)

    def drain(self) -> list[Effect]:
        """All effects since the last call."""
        results = [
            ToClient(client, message)
            for (client, key), answers in self._answers.items()
            for message in _results(key, answers)
        ]
        effects = [*results, *self._effects]
        self._answers, self._effects = {}, []
        return effects


def _results(key: str, answers: Iterable[Output | Failure]) -> Iterator[Results]:
    """The answers in order: two may be of one id, the first for a submit that the client has cancelled since."""
    for _, run in groupby(answers, type):
        alike = list(run)
        for outputs in output_batches(each for each in alike if isinstance(each, Output)):
            yield Results(key=key, outputs=outputs)
        for failures in failure_batches(each for each in alike if isinstance(each, Failure)):
            yield Results(key=key, failures=failures)

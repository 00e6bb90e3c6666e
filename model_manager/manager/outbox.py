"""Decisions of the router for the server to carry out: messages to send, engines to start and to stop."""

from __future__ import annotations

from dataclasses import dataclass

from ..wire.batching import failure_batches, output_batches
from ..wire.config import ModelConfig
from ..wire.messages import Failure, Message, Output, Results


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
    """Effects in order. Answers come first; they are gathered, so that a client gets few Results messages a model.

    A client that cancels an id and submits it again thus gets the first one's answer before tokens of the second.
    """

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._answers: dict[tuple[int, str], tuple[list[Output], list[Failure]]] = {}

    def add(self, effect: Effect) -> None:
        """One more effect."""
        self._effects.append(effect)

    def to_client(self, client: int, message: Message) -> None:
        """One more message to a client."""
        self._effects.append(ToClient(client, message))

    def answer(self, client: int, key: str, answer: Output | Failure) -> None:
        """One more answer to a client."""
        outputs, failures = self._answers.setdefault((client, key), ([], []))
        if isinstance(answer, Output):
            outputs.append(answer)
        else:
            failures.append(answer)

    def drain(self) -> list[Effect]:
        """All effects since the last call."""
        results: list[Effect] = []
        for (client, key), (outputs, failures) in self._answers.items():
            results += [ToClient(client, Results(key=key, outputs=batch)) for batch in output_batches(outputs)]
            results += [ToClient(client, Results(key=key, failures=batch)) for batch in failure_batches(failures)]
        effects = results + self._effects
        self._answers, self._effects = {}, []
        return effects

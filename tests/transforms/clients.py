"""Clients for tests, beside the stand-in that ships."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, ClassVar

from millrace.model_manager.wire.errors import EngineLost, ModelNotFound, NonFiniteLogits
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.generate import Generate
from millrace.transforms.models.client import ClientOptions
from millrace.transforms.models.stand_in import StandInClient


class PickyClient(StandInClient):
    """Fails the prompts that say so, each in its way."""

    def complete(self, words: list[str], params: SamplingParams) -> Output:
        if words[0] == "nan":
            raise NonFiniteLogits("NaN")
        if words[0] == "lost":
            raise EngineLost("the engine died 4 times")
        return super().complete(words, params)


class ReversingClient(StandInClient):
    """Answers what is in flight in the reverse order of its submission, once `max_num_seqs` prompts are."""

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self._room = options.model.max_num_seqs
        self._waiting: list[tuple[Future[Any], list[str], SamplingParams]] = []

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:  # noqa: ARG002
        mine: Future[Any] = Future()
        self._waiting.append((mine, prompt.split(), params))
        if len(self._waiting) == self._room:
            while self._waiting:
                future, words, params = self._waiting.pop()
                future.set_result(self.complete(words, params))
        return mine


class RecordingClient(PickyClient):
    """Remembers what was done with it; `log` is shared by all in the process."""

    log: ClassVar[list[tuple[str, str]]] = []
    held: ClassVar[threading.Event] = threading.Event()

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self.log.append(("open", options.job))

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:
        self.log.append(("submit", request_id))
        future = super().submit(prompt, params, request_id=request_id)
        future.add_done_callback(lambda done: self._cancelled(request_id) if done.cancelled() else None)
        return future

    def complete(self, words: list[str], params: SamplingParams) -> Output:
        if words[0] == "held":
            self.held.wait(30)
        return super().complete(words, params)

    def _cancelled(self, request_id: str) -> None:
        self.log.append(("cancel", request_id))
        self.held.set()

    def close(self) -> None:
        self.log.append(("close", ""))
        super().close()


def no_such_model(options: ClientOptions) -> StandInClient:
    """Opens nothing."""
    raise ModelNotFound(f"--model {options.model.model}: no such folder")


def generate(*arguments: Any, client: Any = StandInClient, **options: Any) -> Generate:
    """The transform, over such a client."""
    return Generate("stand-in", *arguments, open_client=client, **options)

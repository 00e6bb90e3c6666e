"""The seam between the transforms and the model manager: a client that completes prompts, one a worker process.

Knows what a client does, not how; model_manager.client.EngineClient is the one that Generate opens.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from apache_beam.utils.shared import Shared

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.logprobs import TokenLogprob
from model_manager.wire.messages import FinishReason, ModelInfo, Pooling, Timings
from model_manager.wire.sampling import SamplingParams
from model_manager.wire.shared_settings import UnmetSetting


class Generation(Protocol):
    """What a request came to."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    latency: float
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob] | None

    @property
    def choices(self) -> Sequence[Generation]:
        """For n > 1 all answers, this one first; else none."""


def answers_of(generation: Generation) -> Sequence[Generation]:
    """All answers that a generation consists of, itself the first."""
    return generation.choices or (generation,)


def num_generated_tokens(generation: Generation) -> int:
    """Of all its answers."""
    return sum(len(answer.token_ids) for answer in answers_of(generation))


class ContinuationResult(Protocol):
    """The score of one continuation, a value a token."""

    token_ids: list[int]
    logprobs: list[float]
    greedy: list[bool]
    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    latency: float


class EmbeddingResult(Protocol):
    """A prompt's vector."""

    vector: Iterable[Any]
    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    latency: float


Content = str | list[dict[str, Any]] | list[int]


class Client(Protocol):
    """Completes, scores and embeds prompts; used by many threads."""

    @property
    def info(self) -> ModelInfo:
        """The loaded model."""

    @property
    def unmet(self) -> Sequence[UnmetSetting]:
        """Settings of engine or manager that were asked for and do not hold."""

    def submit(self, prompt: Content, params: SamplingParams, *, request_id: str) -> Future[Any]:
        """Blocks for a credit, returns a future of a Generation; raises RequestError at once for what can never run.

        The future's callbacks are called on a thread of the client's. Cancelling the future ends the request.
        """

    def score(
        self, prompt: Content, continuations: Sequence[str | list[int]], params: SamplingParams, *, request_id: str
    ) -> Future[Any]:
        """As `submit`; a future of a ContinuationResult for each continuation."""

    def embed(
        self, prompt: Content, params: SamplingParams, *, request_id: str, pooling: Pooling, normalize: bool
    ) -> Future[Any]:
        """As `submit`; a future of an EmbeddingResult."""

    def close(self) -> None:
        """Cancel what is outstanding and let go of the model."""


class ClientOptions:
    """Everything that a worker needs to open its client; pickled into the pipeline."""

    def __init__(
        self, model: ModelConfig, *, manager: ManagerConfig | None = None, job: str = "", chat: bool | None = None
    ) -> None:
        self.model = model
        self.manager = manager or ManagerConfig()
        self.job = job
        self.chat = chat


Opener = Callable[[ClientOptions], Client]


def open_engine_client(options: ClientOptions) -> Client:
    """A client of this machine's model manager, which it starts if there is none; waits until the model is loaded."""
    from model_manager.client import EngineClient  # here, because a graph is built where no model is ever run

    return EngineClient.open(options.model, manager=options.manager, job=options.job, chat=options.chat)


class SharedClient:
    """One client a worker process for all the DoFns of a transform: opened by the first, closed by the last.

    Not opened before an element comes: a worker, or a bundle, without any starts nothing.
    """

    def __init__(self, options: ClientOptions, opener: Opener) -> None:
        self._options = options
        self._opener = opener
        self._shared = Shared()

    @property
    def model_name(self) -> str:
        """The model that answers, as it was asked for."""
        return self._options.model.model

    def lease(self, holder: object) -> Lease:
        """Use the client for as long as `holder` lives, or until the lease is ended."""
        users = self._shared.acquire(lambda: _Users(self._options, self._opener), tag=self._options.model.key)
        return Lease(users, holder)


class Lease:
    """One DoFn's use of the shared client."""

    def __init__(self, users: _Users, holder: object) -> None:
        self.client = users.enter()
        self._leave = weakref.finalize(holder, users.leave)

    def end(self) -> None:
        """Let go of the client; once is enough, more does no harm."""
        self._leave()


class _Users:
    """Who uses the client of this process; it is open while anyone does."""

    def __init__(self, options: ClientOptions, opener: Opener) -> None:
        self._options = options
        self._opener = opener
        self._lock = threading.RLock()  # the collector may end a lease in the thread that opens
        self._count = 0
        self._client: Client | None = None

    def enter(self) -> Client:
        with self._lock:
            self._count += 1  # first, so that no lease that ends meanwhile is the last
            try:
                self._client = self._client or self._opener(self._options)
            except BaseException:
                self._count -= 1
                raise
            return self._client

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            client = self._client if not self._count else None
            if client is not None:
                self._client = None
        if client is not None:
            client.close()

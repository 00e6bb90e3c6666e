"""The seam between the transforms and the model manager: a client that completes prompts, one a worker process.

Knows what a client does, not how; model_manager.client.EngineClient is the one that Generate opens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.logprobs import TokenLogprob
from model_manager.wire.messages import FinishReason, Pooling, Timings
from model_manager.wire.sampling import SamplingParams
from model_manager.wire.shared_settings import UnmetSetting
from model_manager.wire.status import ModelInfo


class Answered(Protocol):
    """What is known of every request that was answered."""

    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    latency: float


class Generation(Answered, Protocol):
    """What a request came to."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob] | None
    forced: list[int]
    """Positions in `token_ids` of tokens that were the only ones that a constraint allowed."""
    closed_at: int | None
    """Of a constrained output that its budget cut: the offset in `text` where another ending begins."""

    @property
    def choices(self) -> Sequence[Generation]:
        """For n > 1 all answers, this one first; else none."""


def answers_of(generation: Generation) -> Sequence[Generation]:
    """All answers that a generation consists of, itself the first."""
    return generation.choices or (generation,)


def num_generated_tokens(generation: Generation) -> int:
    """Of all its answers."""
    return sum(len(answer.token_ids) for answer in answers_of(generation))


class ContinuationResult(Answered, Protocol):
    """The score of one continuation, a value a token."""

    token_ids: list[int]
    logprobs: list[float]
    greedy: list[bool]


class EmbeddingResult(Answered, Protocol):
    """A prompt's vector."""

    vector: Iterable[Any]


Content = str | list[dict[str, Any]] | list[int]


class Client(Protocol):
    """Completes, scores and embeds prompts; used by many threads."""

    @property
    def info(self) -> ModelInfo:
        """The loaded model."""

    @property
    def key(self) -> str:
        """The same for equal contents and settings of a model."""

    @property
    def unmet(self) -> Sequence[UnmetSetting]:
        """Settings of engine or manager that were asked for and do not hold."""

    def submit(self, prompt: Content, params: SamplingParams, *, request_id: str) -> Future[Any]:
        """Blocks for a credit, returns a future of a Generation; raises RequestError at once for what can never run.

        The future's callbacks are called on a thread of the client's. Cancelling the future ends the request.
        ModelReplaced, raised or the future's, asks for another try with the model that takes this one's place.
        """

    def score(
        self, prompt: Content, continuations: Sequence[str | list[int]], params: SamplingParams, *, request_id: str
    ) -> Future[Any]:
        """As `submit`; a future of a ContinuationResult for each continuation."""

    def embed(
        self, prompt: Content, params: SamplingParams, *, request_id: str, pooling: Pooling, normalize: bool
    ) -> Future[Any]:
        """As `submit`; a future of an EmbeddingResult."""

    def retire(self) -> None:
        """Whoever waits for a credit, or comes later, gets ModelReplaced; what is outstanding goes on."""

    def close(self) -> None:
        """Cancel what is outstanding and let go of the model."""


@dataclass(frozen=True)
class ClientOptions:
    """Everything that a worker needs to open a client; pickled into the pipeline, but for what concerns a change."""

    model: ModelConfig
    manager: ManagerConfig = field(default_factory=ManagerConfig)
    job: str = ""
    chat: bool | None = None
    changes: bool = False
    """The job's model may change while it runs."""
    replaces: str = ""
    """The key of the model that is left for this one."""
    follow: Callable[[ModelConfig], None] | None = None
    """To be told where others of the job have gone."""
    abandoned: Event | None = None
    """Set when nobody waits for this client any more."""
    retry_within: float = 0.0
    """Seconds that requests of a failed bundle go on after teardown, for its retry to find them."""


Opener = Callable[[ClientOptions], Client]


def open_engine_client(options: ClientOptions) -> Client:
    """A client of this machine's model manager, which it starts if there is none; waits until the model is loaded."""
    # here, because a graph is built where no model is ever run
    from model_manager.client import EngineClient, Succession

    group = options.job if options.changes else ""
    return EngineClient.open(
        options.model,
        manager=options.manager,
        job=options.job,
        chat=options.chat,
        succession=Succession(group, options.replaces, options.follow, options.abandoned),
    )

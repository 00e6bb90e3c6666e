"""The seam between the transforms and the model manager: a client that completes prompts, one a worker process.

Knows what a client does, not how; millrace.model_manager.client.EngineClient is the one that Generate opens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.request import Output, Pooling
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.server_options import connection_of
from millrace.model_manager.wire.shared_settings import UnmetSetting
from millrace.model_manager.wire.status import ModelInfo
from millrace.model_manager.wire.traces import Traces

Content = str | list[dict[str, Any]] | list[int]


class Client(Protocol):
    """Completes, scores and embeds prompts; used by many threads."""

    @property
    def model(self) -> str:
        """The name of the model, as it was asked for."""

    @property
    def info(self) -> ModelInfo:
        """The model, as it was loaded."""

    @property
    def key(self) -> str:
        """The same for equal contents and settings of a model."""

    @property
    def unmet(self) -> Sequence[UnmetSetting]:
        """Settings of engine or manager that were asked for and are not in force."""

    def submit(
        self, prompt: Content, params: SamplingParams, *, request_id: str, may_be_cut: bool = False
    ) -> Future[Output]:
        """Blocks for a credit, returns a future of the answer; raises RequestError at once for what can never run.

        `may_be_cut`: an output that `max_tokens` cuts before it meets its constraint is an answer too. The future's
        callbacks are called on a thread of the client's. Cancelling the future ends the request.
        ModelReplaced asks for another try with the model that has taken this one's place.
        """

    def score(
        self, prompt: Content, continuations: Sequence[str | list[int]], params: SamplingParams, *, request_id: str
    ) -> Future[list[Output]]:
        """As `submit`; a future of an answer for each continuation."""

    def embed(
        self, prompt: Content, params: SamplingParams, *, request_id: str, pooling: Pooling, normalize: bool
    ) -> Future[Output]:
        """As `submit`; a future of the answer with its vector."""

    def retire(self) -> None:
        """Take no more requests: waiting and later calls raise ModelReplaced. Outstanding requests go on."""

    def close(self) -> None:
        """Cancel what is outstanding and let go of the model."""


@dataclass(frozen=True)
class ClientOptions:
    """Everything that a worker needs to open a client. Pickled into the pipeline, without `abandoned`."""

    model: ModelConfig
    manager: ManagerConfig = field(default_factory=ManagerConfig)
    job: str = ""
    chat: bool | None = None
    abandoned: Event | None = None
    """Set when nobody waits for this client any more."""
    traces: Traces | None = None
    """Where spans of requests go."""
    retry_within: float = 0.0
    """Seconds that requests of a failed bundle go on after teardown, for its retry to find them."""
    on_demand: bool = False
    """Where the models in use do not all fit in memory, its first request loads the model, if it was loaded before."""


def takes_seeds(model: ModelConfig) -> bool:
    """Whether the engine of a model takes seeds for sure."""
    connection = connection_of(model.backend, model.backend_options)
    return "seed" in BACKENDS[model.backend].parameters and (connection is None or connection.takes_seeds)


Opener = Callable[[ClientOptions], Client]


def open_engine_client(options: ClientOptions) -> Client:
    """A client of this machine's model manager, which it starts if there is none; waits until the model is loaded."""
    # here, because a graph is built where no model is ever run
    from millrace.model_manager.client import EngineClient

    return EngineClient.open(
        options.model,
        manager=options.manager,
        job=options.job,
        chat=options.chat,
        abandoned=options.abandoned,
        traces=options.traces,
        on_demand=options.on_demand,
    )

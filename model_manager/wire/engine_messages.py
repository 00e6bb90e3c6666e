"""Every message between the manager and an inference process.

    manager ──StartEngine, Submit, Cancel, ResizeCache, Shutdown──► engine
    manager ◄──EngineReady, EngineFailed, StepReport, CacheResized, Heartbeat── engine

Requests and their answers are in request.py, messages that both sides of the manager have in messages.py.
"""

from __future__ import annotations

import msgspec

from .config import ModelConfig
from .errors import ErrorInfo
from .logprobs import Logprobs
from .messages import Cancel, Message, Submit
from .request import Failure, NewText, Output
from .status import EngineStats, ModelInfo

LOAD_INTERRUPTED = 4
"""Exit status of an engine that has loaded no model, and whose successor may well load it."""


class StartEngine(Message, frozen=True):
    """First message to an engine: load this model."""

    config: ModelConfig
    folder: str
    heartbeat: float


class Shutdown(Message, frozen=True):
    """End now; what is running is dropped (the manager has it)."""


class ResizeCache(Message, frozen=True):
    """Let the KV cache take at most so many bytes; only to an engine whose ModelInfo tells its size."""

    cache_bytes: int


class EngineReady(Message, frozen=True):
    """The model is loaded and steps can run."""

    info: ModelInfo


class EngineFailed(Message, frozen=True):
    """The model cannot be loaded, or can no longer answer any request; the process exits next."""

    error: ErrorInfo


class StepReport(Message, frozen=True, omit_defaults=True):
    """The results of one step, and new tokens of steps before it."""

    outputs: list[Output] = msgspec.field(default_factory=list)
    failures: list[Failure] = msgspec.field(default_factory=list)
    progress: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """Tokens generated since the last report, by request: what a successor needs to go on."""
    stats: EngineStats | None = None
    logprobs: dict[str, Logprobs] = msgspec.field(default_factory=dict)
    """Log-probabilities of the tokens in `progress`, for requests that ask for them."""
    texts: dict[str, NewText] = msgspec.field(default_factory=dict)
    """Text of the tokens in `progress`, from an engine that takes text."""


class CacheResized(Message, frozen=True):
    """The answer to ResizeCache, once memory beyond is given back: what the KV cache may take now."""

    cache_bytes: int


class Heartbeat(Message, frozen=True):
    """A sign of life, from a thread beside the loop."""

    steps: int
    in_step: float
    """Seconds that the current step (or the loading) has run; 0 when idle."""
    warnings: list[str] = msgspec.field(default_factory=list)
    """What the engine has logged since the last one, for the people whose jobs it runs."""


ManagerToEngine = StartEngine | Submit | Cancel | ResizeCache | Shutdown
EngineMessage = EngineReady | EngineFailed | StepReport | CacheResized | Heartbeat

"""Every message between clients and the manager. No tensors, no Python objects.

    client ──Hello, OpenModel, FindAdapter, Submit, Cancel, Ping, GetStatus, StopModels──► manager
    client ◄──Welcome, Refused, Credits, Progress, Results, Pong, Status── manager
    client ◄──ModelReady, ModelFailed, ModelWarnings, AdapterFound── manager

Requests and their answers are in request.py. What the manager and an engine say to each other is in engine_messages.py.
"""

from __future__ import annotations

import msgspec

from .config import ManagerConfig, ModelConfig
from .errors import ConfigError, ErrorInfo
from .request import Adapter, Failure, Name, NewTokens, Output, Request
from .shared_settings import UnmetSetting
from .status import EndedModel, JobStatus, ModelInfo, ModelStatus, ProcessStatus

PROTOCOL = 13
_MOST_SETTINGS_BYTES = 2**16
_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all messages; the class's name is the tag on the wire."""


# ── client → manager ─────────────────────────────────────────────────────────────────────────────────────────────────


class Hello(Message, frozen=True):
    """First message of a client. An observer (ps, progress) does not keep the manager alive."""

    protocol: int
    pid: int
    observer: bool = False


class OpenModel(Message, frozen=True):
    """Ask for a model; answered by ModelReady or ModelFailed, after loading if need be."""

    config: ModelConfig
    folder: Name
    """The model's verified local folder; empty from a client that shares no file system with the manager, which then
    finds the model by its name."""
    manager: ManagerConfig = ManagerConfig()
    """How this client would have the manager."""
    key_digest: Name = ""
    tokenizer: Name = ""
    """Without a folder: the digest of the tokenizer that this client has (store/locating.py)."""
    revision: Name = ""
    """Without a folder: the contents that this client was given at first; the manager gives it no others."""
    on_demand: bool = False
    """ModelReady may come before the model is loaded, if an earlier load of it is known: its first request loads it."""

    def __post_init__(self) -> None:
        size = len(_encoder.encode((self.config, self.manager)))
        if size > _MOST_SETTINGS_BYTES:
            raise ConfigError(f"the settings of the model have {size} bytes: at most {_MOST_SETTINGS_BYTES} are taken")


class FindAdapter(Message, frozen=True):
    """Ask where a LoRA adapter is, from a client that shares no file system; answered by AdapterFound."""

    name: Name


class CloseModel(Message, frozen=True):
    """This client needs the model no more."""

    key: str
    replaced: bool = False
    """Another model has its place, so its engines end with their last request, without `linger`."""


class Submit(Message, frozen=True):
    """Requests for a model; each is answered once, in Results."""

    key: str
    requests: list[Request]


class Cancel(Message, frozen=True):
    """Cancel requests; each still gets its one answer (finish reason abort, unless it was finished)."""

    key: str
    request_ids: list[Name]


class Ping(Message, frozen=True):
    """A sign of life; answered by Pong."""


class GetStatus(Message, frozen=True):
    """Answered by Status."""


class StopModels(Message, frozen=True):
    """End the named model's engine, or with no key everything and the manager too."""

    key: str | None = None


# ── manager → client ─────────────────────────────────────────────────────────────────────────────────────────────────


class Welcome(Message, frozen=True):
    """Answer to Hello."""

    protocol: int
    pid: int
    settings: ManagerConfig = ManagerConfig()
    """The settings in force: the manager's first client decided them."""


class ModelReady(Message, frozen=True):
    """The model takes requests: it is loaded, or is to be loaded on demand."""

    key: str
    """Key by which the client names the model from now on."""
    info: ModelInfo
    unmet: list[UnmetSetting]
    """What this client asked for and does not get."""


class ModelFailed(Message, frozen=True):
    """The model cannot be loaded, or was given up; outstanding requests of it get no other answer."""

    key: str
    error: ErrorInfo


class ModelWarnings(Message, frozen=True):
    """What an engine of the model warns of."""

    key: str
    texts: list[str]


class AdapterFound(Message, frozen=True):
    """Answer to FindAdapter: the adapter, or why there is none."""

    adapter: Adapter | None = None
    error: ErrorInfo | None = None


class Credits(Message, frozen=True):
    """How many requests this client may have outstanding on a model from now on."""

    key: str
    limit: int


class Progress(Message, frozen=True):
    """New tokens of requests. Of those that asked to be streamed they come at once, of others with a Pong, in case the
    manager dies. The last tokens of a request come with its result instead.
    """

    key: str
    tokens: list[NewTokens]


class Results(Message, frozen=True, omit_defaults=True):
    """Answers to requests."""

    key: str
    outputs: list[Output] = []
    failures: list[Failure] = []


class Pong(Message, frozen=True):
    """Answer to Ping."""

    computed: dict[str, int] = {}
    """Tokens that engines have computed for the client's running requests, by id: lost if the manager dies now."""


class Status(Message, frozen=True):
    """Answer to GetStatus."""

    pid: int
    """Process id of the manager."""
    uptime: float
    """Seconds since the manager started."""
    models: list[ModelStatus]
    """Models that clients use, or that are loaded."""
    jobs: list[JobStatus]
    """Jobs that this manager has served."""
    processes: list[ProcessStatus]
    """Processes that take part."""
    ended: list[EndedModel] = []
    """Models that nobody uses any more."""
    instance: str = ""
    """Another for each start of a manager, also of one with the same process id."""


class Refused(Message, frozen=True):
    """The manager cannot serve this client (another protocol, or it is ending); it closes the connection next."""

    error: ErrorInfo


ClientMessage = Hello | OpenModel | FindAdapter | CloseModel | Submit | Cancel | Ping | GetStatus | StopModels
ManagerToClient = (
    Welcome
    | ModelReady
    | ModelFailed
    | ModelWarnings
    | AdapterFound
    | Credits
    | Progress
    | Results
    | Pong
    | Status
    | Refused
)

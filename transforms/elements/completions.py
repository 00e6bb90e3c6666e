"""Prompt, Completion and DeadLetter: what flows between the transforms, and how Beam encodes it.

They are plain values: nothing here knows of files, engines or processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Self

import apache_beam as beam
import msgspec

from millrace.model_manager.wire.decoding import json_decoder
from millrace.model_manager.wire.errors import ErrorInfo, InvalidRequest
from millrace.model_manager.wire.json_text import canonical
from millrace.model_manager.wire.logprobs import Logprobs, TokenLogprob
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings

Messages = list[dict[str, Any]]
DEAD_LETTERS = "dead_letters"
"""The tag of the output that dead letters leave a transform by."""

MODEL_COLUMN = "model"
"""The column by which a row names its model, where a job has several."""


def content_id(content: Any) -> str:
    """An id that is the same in any process for equal values of JSON."""
    return hashlib.sha256(canonical(content)).hexdigest()[:24]


class Prompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row to complete: exactly one of `text`, `messages` (chat) and `token_ids`.

    Raises InvalidRequest when there is none, or more than one, or it is empty.
    """

    id: str = ""
    """Names the completion; left empty, it is derived from the content."""
    text: str | None = None
    messages: Messages | None = None
    """Chat messages: mappings with `role` and `content`."""
    token_ids: list[int] | None = None
    params: dict[str, Any] = {}
    """The row's own sampling parameters (names of SamplingParams), on top of the job's."""
    columns: dict[str, Any] = {}
    """JSON values that are passed through to the completion unchanged."""
    source: str = ""
    """Where it was read: file and position (reading/positions.py)."""
    endpoint: str = ""
    """OpenAI's endpoint, if the row came in OpenAI's batch format."""
    original: str | None = None
    """The row as JSON, where it was read as JSON or from a table; goes to the dead letters unchanged."""

    def __post_init__(self) -> None:
        given = [field for field in (self.text, self.messages, self.token_ids) if field is not None]
        if len(given) != 1:
            raise InvalidRequest(f"a prompt has one of text, messages and token_ids, not {len(given)} of them")
        if not given[0]:
            raise InvalidRequest("the prompt is empty")

    @property
    def content(self) -> str | Messages | list[int]:
        """Whichever of text, messages and token ids there is."""
        found = self.text or self.messages or self.token_ids
        assert found is not None
        return found

    @property
    def prompt_hash(self) -> str:
        """16 hex digits of the content, the row's own parameters and its model; the id is no part of it."""
        return self.content_id[:16]

    @property
    def content_id(self) -> str:
        """An id for prompts without one: the same in any process for equal content, parameters and model."""
        model = self.columns.get(MODEL_COLUMN)
        return content_id((self.content, self.params) if model is None else (self.content, self.params, model))

    def digest(self, job: str, params: SamplingParams, task: Sequence[Any] = ()) -> bytes:
        """A hash of the prompt's id and of everything that its result in this job depends on. `task`: the task and its
        settings.
        """
        return hashlib.sha256(canonical((job, self.id, self.content, params, *task))).digest()

    def row(self) -> Any:
        """The row as it was read, if it is known; else a row that is read as an equal prompt."""
        if self.original is not None:
            return msgspec.json.decode(self.original)
        if self.text is not None and self.source and self == Prompt(id=self.source, text=self.text, source=self.source):
            return self.text  # a line, or a file that was read whole
        content = {"messages": self.messages} if self.messages else {"prompt": self.content}
        params = {"sampling_params": self.params} if self.params else {}
        return ({"id": self.id} if self.id else {}) | content | params | self.columns


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int = 0
    """Tokens of the prompt."""
    cached_tokens: int = 0
    """Prompt tokens whose KV cache was reused."""
    completion_tokens: int = 0
    """Tokens that the model generated."""

    @classmethod
    def of(cls, answers: Sequence[Output]) -> Self:
        """The tokens of the requests, and of all their choices."""
        return cls(
            sum(each.prompt_tokens for each in answers),
            sum(each.cached_tokens for each in answers),
            sum(choice.num_generated for each in answers for choice in each.choices or (each,)),
        )


class Choice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several answers to a prompt (n > 1)."""

    text: str
    """The answer."""
    finish_reason: FinishReason
    """`stop`, `length`, `abort` or `error`."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that matched."""
    closed_at: int | None = None
    """As a Completion's."""
    token_ids: list[int] = []
    """Generated tokens."""
    logprobs: list[TokenLogprob] | None = None
    """As a Completion's."""
    forced: list[int] = []


class Completion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one prompt; with finish reason `error`, `error` says why and `text` is empty.

    For n > 1 text, reasons and token ids belong to the first answer, and usage counts all.
    """

    id: str
    """The prompt's id."""
    text: str = ""
    """The answer."""
    finish_reason: FinishReason
    """`stop`, `length`, `abort` or `error`."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that matched."""
    closed_at: int | None = None
    """Offset in `text` (characters, from 0) where an added ending begins, if `max_tokens` cut a constrained output. The
    model wrote what stands before it.
    """
    usage: Usage = Usage()
    """Tokens of the request."""
    timings: Timings | None = None
    """Seconds from the manager's receipt of the request to each event."""
    latency: float = 0.0
    """Seconds from submission to result, as the worker saw them."""
    model: str = ""
    """Name of the model that answered, as it was given."""
    revision: str = ""
    """Contents of the model: a hub's commit, or a hash of a folder's or a bucket's files."""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    """Log-probability of each generated token, if the parameters ask for it: the model's own, before sampling
    parameters changed it.
    """
    prompt_logprobs: list[TokenLogprob] | None = None
    """Log-probability of each token of the prompt but the first, if the parameters ask for it."""
    forced: list[int] = []
    """Positions in `token_ids` whose token was the only one that the constraint allowed."""
    choices: list[Choice] = []
    """All answers if `n` is over 1, the first among them."""
    prompt_hash: str = ""
    """16 hex digits of the prompt and the row's own parameters, by which `--resume` tells rows of one id apart."""
    columns: dict[str, Any] = {}
    """The prompt's further columns."""
    endpoint: str = ""
    """As a Prompt's."""
    error: ErrorInfo | None = None
    """Why the prompt has no answer."""

    @classmethod
    def of(cls, prompt: Prompt, answer: Output, model: str, revision: str) -> Self:
        """The completion of a prompt that was answered: the one place where an answer becomes an element."""
        return cls(
            id=prompt.id,
            **_said(answer),
            usage=Usage.of([answer]),
            timings=answer.timings,
            latency=answer.latency,
            model=model,
            revision=revision,
            prompt_logprobs=_tokens(answer.prompt_logprobs),
            choices=[Choice(**_said(each)) for each in answer.choices],
            columns=prompt.columns,
            endpoint=prompt.endpoint,
        )


def _said(answer: Output) -> dict[str, Any]:
    """The fields of a Choice, which a Completion has too."""
    said = {name: getattr(answer, name) for name in Choice.__struct_fields__}
    return said | {"logprobs": _tokens(answer.logprobs)}


def _tokens(logprobs: Logprobs | None) -> list[TokenLogprob] | None:
    return None if logprobs is None else logprobs.tokens


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row that has no completion, and why."""

    id: str
    """The row's id."""
    error: str
    """Class of the error (docs/reference/errors.md)."""
    reason: str
    """One sentence."""
    row: Any = None
    """The original row: its JSON value, a table's row as an object, or its text where it is neither.
    Where a file's row is not JSON, its beginning: 65,536 characters at most.
    """
    source: str = ""
    """Where the row was read: file and position."""
    model: str = ""
    """Model of the failed request; empty if no model was asked."""
    revision: str = ""
    """As a Completion's."""
    answer: str = ""
    """The model's answer, if it was refused or cut short."""
    endpoint: str = ""
    """As a Prompt's."""

    @classmethod
    def of(cls, prompt: Prompt, error: ErrorInfo, model: str = "", revision: str = "", answer: str = "") -> Self:
        """The letter of a prompt whose request failed."""
        return cls(
            id=prompt.id,
            error=error.kind,
            reason=error.message,
            row=prompt.row(),
            source=prompt.source,
            endpoint=prompt.endpoint,
            model=model,
            revision=revision,
            answer=answer,
        )


class StructCoder(beam.coders.Coder):
    """Codes a Struct as JSON with sorted keys, without pickle. Equal values have equal bytes, so they may be keys."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self._struct = struct

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: Any) -> Self:  # noqa: ARG003
        return cls(typehint)

    def encode(self, value: msgspec.Struct) -> bytes:
        return canonical(value)

    def decode(self, encoded: bytes) -> Any:
        return json_decoder(self._struct).decode(encoded)

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> Any:
        return self._struct

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructCoder) and self._struct is other._struct

    def __hash__(self) -> int:
        return hash(self._struct)


for _struct in (Prompt, Completion, DeadLetter):
    beam.coders.registry.register_coder(_struct, StructCoder)

"""Dialects of servers: the route, the body of a request, and the meaning of its answer.

`openai.py`, `tgi.py`, `mii.py`, `kserve.py`, `kserve_grpc.py` and `llama_completion.py` are the dialects. They turn
requests into bytes and bytes into answers; they send nothing and retry nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from ...wire.decoding import json_decoder
from ...wire.dialect_parameters import DialectParameters
from ...wire.errors import InvalidRequest
from ...wire.logprobs import Logprobs
from ...wire.request import FinishReason, Request
from ...wire.sampling import SamplingParams

_AROUND = 2**17
"""Tokens that a server may add to a prompt: its own system message, tools, a template."""
_SLACK = 64
"""Tokens beyond `max_tokens` that a server may count: of an ending, of a step that gives several."""
_LARGEST_FLOAT = 3.4028234663852886e38
_DEFAULTS = SamplingParams()
_Body = TypeVar("_Body")


class Garbled(Exception):
    """An answer with a good status that is not what the dialect says; the request may be tried again."""


@dataclass(frozen=True)
class Call:
    """What is asked of a server: over HTTP a POST, or as a probe a GET; over gRPC a method and its message."""

    route: str
    body: bytes = b""


@dataclass(frozen=True)
class ServerAnswer:
    """What a server answered."""

    text: str = ""
    finish_reason: FinishReason = FinishReason.STOP
    stop_reason: str | int | None = None
    num_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    embedding: list[float] | None = None
    logprobs: Logprobs | None = None
    retried: tuple[float, ...] = ()
    """When earlier tries had failed, on the clock of the loop."""


def sound(answer: ServerAnswer) -> ServerAnswer:
    """The answer, if its numbers fit into a message; raises Garbled for others. Counts are `plausible`'s."""
    stop = answer.stop_reason
    if isinstance(stop, int) and not 0 <= stop < 2**63:
        raise Garbled("its answer's stop_reason is no token")
    if not all(abs(each) <= _LARGEST_FLOAT for each in answer.embedding or ()):  # false for NaN too
        raise Garbled("its answer's vector has a number that no float of 32 bits holds")
    return answer


def plausible(answer: ServerAnswer, request: Request) -> ServerAnswer:
    """The answer with the counts that can be: 0 in the place of one below 0, or beyond what was asked and what came.

    A token stands for a byte of text at least, and an answer has at most `max_tokens` of them.
    """
    asked = len(request.text.encode()) + sum(len(str(each).encode()) for each in request.messages)
    most = max(request.params.max_tokens, len(answer.text.encode())) + _SLACK
    prompt = answer.prompt_tokens if 0 <= answer.prompt_tokens <= asked + _AROUND else 0
    return replace(
        answer,
        num_tokens=answer.num_tokens if 0 <= answer.num_tokens <= most else 0,
        prompt_tokens=prompt,
        cached_tokens=answer.cached_tokens if 0 <= answer.cached_tokens <= prompt else 0,
    )


class Dialect(Protocol):
    """A way to ask servers for completions."""

    @property
    def name(self) -> str:
        """What the option `dialect` calls it."""

    probes: tuple[Call, ...]
    """What is asked as the engine starts: the first tells that the server lives."""
    needs_probes: bool
    """Without what they tell no request can be made."""
    max_model_len: int
    """Most tokens of prompt and answer, if the probes told it; else 0."""

    def learn(self, route: str, body: bytes) -> None:
        """Take in what a probe answered; raises ModelError if the server cannot do the work, Garbled if not now."""

    def base(self, url: str) -> str:
        """What routes are appended to, of a URL as the user gave it."""

    def check(self, request: Request) -> None:
        """Raises InvalidRequest, naming it, for what the dialect cannot ask for."""

    def call(self, request: Request) -> Call:
        """What to send for a request that was checked."""

    def read(self, request: Request, body: bytes, headers: Mapping[str, str]) -> ServerAnswer:
        """The answer in a body; raises Garbled, or RequestError if it is the row's fault."""


def check_task(request: Request, dialect: str, tasks: Collection[str]) -> None:
    """Raises InvalidRequest for a task that the dialect lacks."""
    if request.task not in tasks:
        raise InvalidRequest(f"task {request.task}: the dialect {dialect} takes {', '.join(sorted(tasks))}")


def check_text(request: Request, dialect: str) -> None:
    """Raises InvalidRequest for a conversation, where the dialect takes a text."""
    if request.messages:
        raise InvalidRequest(f"messages: the dialect {dialect} takes a text; the dialect openai takes messages")
    if not request.text:
        raise InvalidRequest("prompt: is empty")


class TextDialect:
    """What dialects share that generate text from a text, at the URL as it was given."""

    parameters: DialectParameters
    needs_probes = False
    max_model_len = 0

    @property
    def name(self) -> str:
        """What the option `dialect` calls it."""
        return self.parameters.name

    def learn(self, route: str, body: bytes) -> None:
        """Nothing is read of the answer: the server lives, because it answers."""

    def base(self, url: str) -> str:
        """The URL as it was given."""
        return url

    def check(self, request: Request) -> None:
        """Raises InvalidRequest for what cannot be asked for."""
        check_task(request, self.name, ("generate",))
        check_text(request, self.name)
        self.parameters.check(request.params)


def given(params: SamplingParams, names: Collection[str]) -> dict[str, Any]:
    """The parameters of these names that are not at their default."""
    fields = ((name, getattr(params, name)) for name in SamplingParams.__struct_fields__ if name in names)
    return {name: value for name, value in fields if value != getattr(_DEFAULTS, name)}


def parsed(body: bytes, kind: type[_Body]) -> _Body:
    """A body as this struct, or a list of them; raises Garbled with the reason and the body's beginning."""
    try:
        return json_decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = body[:80].decode(errors="replace")
        raise Garbled(f"its answer is not what the dialect says ({error}): {shown!r}") from None


def has_path(url: str) -> bool:
    """Whether a base URL names more than a host."""
    return urlsplit(url).path not in ("", "/")


def cut_at_stop(text: str, params: SamplingParams) -> tuple[str, str | None]:
    """A text without the stop string that ended it, unless it is wanted, and that string.

    For servers that leave it in: it stands at the end, and nothing after it.
    """
    found = next((stop for stop in params.stop if text.endswith(stop)), None)
    if found is None or params.include_stop_str_in_output:
        return text, found
    return text[: len(text) - len(found)], found

"""One request and llama.cpp's server: what is sent, what comes back. Over the server's own HTTP, within this process.

The answer comes token by token, so that a request which ends early frees its slot at once; its parts are put together
when it is over. Knows a request and the dialect of `/completion`; not which request runs when.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

from ...engine.scheduling.sequence import sampling_seed
from ...grammars.compiling import as_lark, check, is_whole
from ...wire.constraint import Constraint
from ...wire.decoding import msgpack_decoder
from ...wire.errors import ConstraintNotMet, InvalidRequest, PromptTooLong, not_complete, one_line
from ...wire.logprobs import LEAST, Logprobs, TokenLogprob, TopLogprob
from ...wire.request import FinishReason, Request
from ...wire.sampling import SamplingParams

_FIELDS = ["content", "tokens", "stop", "stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated"]
"""What the last part of an answer is to have; the other parts always have the first ones."""
_LARK = "%llguidance {}\n"
"""Before a grammar that is Lark and not GBNF."""
_MOST_32 = 2**31 - 1
"""The largest integer that llama.cpp reads; it takes a larger one modulo 2**32."""
_EVENT = b"data: "
_BETWEEN = b"\n\n"


@dataclass
class IncomingReply:
    """An answer as it comes in. Another thread may cancel it at any time."""

    pieces: list[bytes] = field(default_factory=list)
    first_at: float | None = None
    """When the first of its tokens came, on the clock of `time.monotonic`."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _socket: socket.socket | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Give the answer up: the server sees the connection close when it sends the next token."""
        with self._lock:
            self.is_cancelled = True
            if self._socket is not None:
                _shut(self._socket)

    def begin(self, connected: socket.socket) -> None:
        """The connection that it comes over."""
        with self._lock:
            self._socket = connected
            if self.is_cancelled:
                _shut(connected)

    def end(self) -> None:
        """The connection is about to be closed."""
        with self._lock:
            self._socket = None

    def answer(self, alternatives: int) -> PartialAnswer:
        """What has come so far, with so many alternatives to each token where there are log-probabilities. Raises
        InvalidRequest or PromptTooLong if the server says so.
        """
        whole, _, _rest = b"".join(self.pieces).rpartition(_BETWEEN)
        events = [json.loads(line.removeprefix(_EVENT)) for line in whole.split(_BETWEEN) if line.startswith(_EVENT)]
        return PartialAnswer.of(events, alternatives)


@dataclass(frozen=True)
class PartialAnswer:
    """An answer, or as much of it as there is."""

    text: str
    token_ids: list[int]
    """Empty if the server did not tell all: tokens that are parts of one character come without their ids."""
    num_tokens: int
    prompt_tokens: int
    cached_tokens: int
    reason: FinishReason | None
    """None of an answer without an end."""
    stop: str | None
    logprobs: Logprobs

    @classmethod
    def of(cls, events: list[dict[str, Any]], alternatives: int) -> PartialAnswer:
        """The answer that the server's events make."""
        for event in events:
            if "error" in event:
                raise _refusal(event)
        last = events[-1] if events else {}
        over = bool(last.get("stop"))
        tokens = [event for event in events if "prompt_progress" not in event and not event.get("stop")]
        progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        ids = [each for event in tokens for each in event.get("tokens", ())]
        count = int(last.get("tokens_predicted", 0))
        word = str(last.get("stopping_word") or "") if over else ""
        return cls(
            text="".join(event["content"] for event in [*tokens, *([last] if over else [])]),
            token_ids=ids if len(ids) == count else [],
            num_tokens=count,
            prompt_tokens=int(last.get("tokens_evaluated", 0)),
            cached_tokens=int(progress[0]["cache"]) if progress else 0,
            reason=(FinishReason.LENGTH if last["stop_type"] == "limit" else FinishReason.STOP) if over else None,
            stop=word or None,
            logprobs=_logprobs(
                [each for event in tokens for each in event.get("completion_probabilities", ())], alternatives
            ),
        )


class LlamaServer:
    """The server of this process."""

    def __init__(self, native: Any, key: str, length: int, prefix_caching: bool) -> None:
        """`native` is xllamacpp's server, which lives as long as this; `length` the positions of one request."""
        self._native = native
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._length = length
        self._prefix_caching = prefix_caching
        self._address = str(native.listening_address).partition("//")[2]

    def complete(self, request: Request, reply: IncomingReply, arrived: Callable[[], None]) -> None:
        """Have a request answered into `reply`, and call `arrived` whenever a part has come.

        Raises InvalidRequest or PromptTooLong for what cannot be answered, OSError or HTTPException if the server is
        gone. Returns early once the reply is cancelled.
        """
        grammar = None if request.params.constraint is None else _grammar(request.params.constraint.key())
        prompt = self._templated(request.messages) if request.messages else request.text
        body = _body(request, prompt, grammar, self._length) | {"cache_prompt": self._prefix_caching}
        connection = HTTPConnection(self._address)
        try:
            connection.connect()
            reply.begin(connection.sock)
            connection.request("POST", "/completion", json.dumps(body), self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _refusal(json.loads(response.read()))
            while piece := response.read1(2**16):
                reply.pieces.append(piece)
                if reply.first_at is None and b'"prompt_progress"' not in piece:
                    reply.first_at = time.monotonic()
                arrived()
        except (OSError, HTTPException):
            if not reply.is_cancelled:
                raise
        finally:
            reply.end()
            connection.close()

    def _templated(self, messages: list[dict[str, Any]]) -> str:
        """A conversation in the words of the model's own template; raises InvalidRequest if that refuses it."""
        connection = HTTPConnection(self._address)
        try:
            connection.request("POST", "/apply-template", json.dumps({"messages": messages}), self._headers)
            response = connection.getresponse()
            found = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise InvalidRequest(f"messages: the model's chat template: {_said(found)}")
        return str(found["prompt"])


def meets_constraint(request: Request, answer: PartialAnswer) -> bool:
    """True if an answer meets its request's constraint, False if it was cut, which the request lets be.

    Raises ConstraintNotMet for one that may not be cut, and where llama.cpp let it go on unconstrained, as it does
    where its matcher fails.
    """
    constraint = request.params.constraint
    if constraint is None or is_whole(_grammar(constraint.key()).removeprefix(_LARK), answer.text):
        return True
    if answer.reason is FinishReason.LENGTH:
        if request.may_be_cut:
            return False
        raise not_complete(answer.num_tokens, request.params.max_tokens)
    raise ConstraintNotMet("the output does not meet its constraint, which llama.cpp did not hold it to")


@functools.lru_cache(maxsize=256)
def _grammar(key: bytes) -> str:
    """The constraint of that key as llama.cpp takes it; raises InvalidRequest for one that cannot be held. llama.cpp
    itself would log what is wrong, and generate without it.
    """
    constraint = msgpack_decoder(Constraint).decode(key)
    check(constraint)
    return _LARK + as_lark(constraint)


def _body(request: Request, prompt: str, grammar: str | None, length: int) -> dict[str, Any]:
    """A request in the words of `/completion`."""
    params = request.params
    body: dict[str, Any] = {
        "prompt": prompt,
        "stream": True,
        "return_progress": True,
        "response_fields": _FIELDS,
        "n_predict": min(params.max_tokens, length),
        "samplers": _samplers(params),
        "temperature": params.temperature,
        "top_k": min(params.top_k, _MOST_32),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": length,
        "seed": sampling_seed(request) % (2**32 - 1),  # the largest of 32 bits means a random one
        "ignore_eos": params.ignore_eos,
        "stop": list(params.stop),
        "logit_bias": [[token_id, bias] for token_id, bias in params.logit_bias.items()],
    }
    if params.logprobs is not None:
        body["n_probs"] = max(1, params.logprobs)
    if grammar is not None:
        body["grammar"] = grammar
    return body


def _samplers(params: SamplingParams) -> list[str]:
    """Only what the request asks for, in the order of our own sampler: each costs a pass over the vocabulary."""
    before = ["penalties"] if params.repetition_penalty != 1 else []
    cuts = {
        "top_k": params.top_k > 0,
        "top_p": params.top_p < 1,
        "min_p": params.min_p > 0,
        "typ_p": params.typical_p < 1,
    }
    after = [name for name, wanted in cuts.items() if wanted and params.temperature > 0]
    return [*before, "temperature", *after]


def _logprobs(entries: list[dict[str, Any]], alternatives: int) -> Logprobs:
    """The server's log-probabilities, of the logits before any sampling parameter."""
    best = [entry["top_logprobs"][0]["id"] for entry in entries]
    tops = [entry["top_logprobs"][:alternatives] for entry in entries]
    return Logprobs(
        logprobs=[_number(entry) for entry in entries],
        greedy=[entry["id"] == first for entry, first in zip(entries, best, strict=True)],
        top_token_ids=[[each["id"] for each in top] for top in tops if top],
        top_logprobs=[[_number(each) for each in top] for top in tops if top],
        token_ids=[entry["id"] for entry in entries],
        tokens=[
            TokenLogprob(
                entry["token"],
                entry["id"],
                _number(entry),
                [TopLogprob(each["token"], each["id"], _number(each)) for each in top],
            )
            for entry, top in zip(entries, tops, strict=True)
        ],
    )


def _number(entry: dict[str, Any]) -> float:
    found = entry["logprob"]
    return LEAST if found is None else max(LEAST, float(found))


def _refusal(found: dict[str, Any]) -> InvalidRequest | PromptTooLong | RuntimeError:
    error = found.get("error", {})
    if error.get("type") == "exceed_context_size_error":
        return PromptTooLong(
            f"prompt of {error.get('n_prompt_tokens')} tokens: prompt and output together take at most"
            f" {error.get('n_ctx')}, at least 1 for output"
        )
    if error.get("code") == 400:
        return InvalidRequest(f"llama.cpp: {_said(found)}")
    return RuntimeError(f"llama.cpp: {_said(found)}")


def _said(found: dict[str, Any]) -> str:
    """The server's message in one line: of a template's, its last part says why."""
    said = " ".join(str(found.get("error", {}).get("message", found)).split())
    return one_line(said.rpartition("Jinja Exception: ")[2])


def _shut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        connected.shutdown(socket.SHUT_RDWR)

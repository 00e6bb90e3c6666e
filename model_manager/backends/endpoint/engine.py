"""The Engine over HTTP or gRPC: an event loop in a thread holds the queue and the requests in flight.

    add ──► queue ──max_num_seqs at once──► Sender ──► mailbox ──► step
    (the inference process's thread)     (the loop's thread)     (the inference process's thread)

Only the loop's thread touches requests, so each ends once (`in_flight.py`).
Where a stream gives tokens from which another try can go on, they are reported as they come (`streams.py`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped, unused-ignore]

from ...engine.interface import StepResult
from ...wire.config import ModelConfig
from ...wire.endpoint_options import EndpointOptions
from ...wire.errors import InvalidRequest
from ...wire.request import NewText, Request
from ...wire.status import EngineStats, ModelInfo
from ..model_info import info_of
from .dialects import Dialect
from .in_flight import EndpointRequests
from .kserve import KServe
from .llama_completion import LlamaCompletion
from .mii import MiiOpenAI, MiiRest
from .openai import OpenAI
from .tgi import TGI

_Result = TypeVar("_Result")
_WAIT = 0.02
"""Seconds that a step waits for a result: new requests are taken in between two steps."""


def load(config: ModelConfig, folder: Path) -> EndpointEngine:
    """An engine whose servers were asked whether they live; raises ConfigError or ModelError."""
    return connect(config, folder, EndpointOptions.parse(config.backend_options))


def connect(config: ModelConfig, folder: Path, options: EndpointOptions, *, health: str = "") -> EndpointEngine:
    """The same, with options that were parsed. `health`: URL of the health route of a server that millrace started."""
    started, key = time.monotonic(), options.key()
    dialect = dialect_of(config.model, options)
    runner = LoopThread()
    try:
        core = runner.run(EndpointRequests.start(config, options, dialect, key, health))
    except BaseException:
        runner.close()
        raise
    info = info_of(
        config,
        folder,
        started,
        architecture=options.dialect,
        dtype="",
        device="remote",
        vocab_size=0,
        max_model_len=dialect.max_model_len,
        max_num_seqs=core.most,
        eos_token_ids=[],
        chat=options.dialect == "openai",
    )
    return EndpointEngine(info, dialect, core, runner)


def dialect_of(model: str, options: EndpointOptions) -> Dialect:
    """The dialect that the options name; raises ConfigError for an extra parameter that there is not."""
    match options.dialect:
        case "tgi":
            return TGI()
        case "llama-completion":
            return LlamaCompletion()
        case "mii":
            return MiiRest(model)
        case "mii-chat" | "mii-completions":
            return MiiOpenAI(model, options, chat=options.dialect == "mii-chat")
        case "triton" | "kserve":
            if options.over_grpc:
                from .kserve_grpc import KServeGrpc  # imports protobuf, which HTTP does without

                return KServeGrpc(model)
            return KServe(model, generates=options.dialect == "triton")
        case _:
            return OpenAI(model, options, chat=options.dialect == "openai")


class EndpointEngine:
    """An Engine (engine/interface.py) whose work is done elsewhere."""

    def __init__(self, info: ModelInfo, dialect: Dialect, core: EndpointRequests, runner: LoopThread) -> None:
        """`connect` makes it."""
        self.info = info
        self._dialect = dialect
        self._core = core
        self._runner = runner
        self._known: set[str] = set()
        self._steps = 0
        self._process = psutil.Process()
        self._counted = self._count()

    def add(self, request: Request) -> None:
        """Queue a request; raises InvalidRequest for what the dialect cannot ask for."""
        if request.request_id in self._known:
            raise InvalidRequest(f"request_id={request.request_id!r}: is running already")
        if request.params.n != 1:
            raise InvalidRequest(f"n={request.params.n}: an engine takes 1; its client sends a request for each answer")
        self._dialect.check(request)
        self._known.add(request.request_id)
        self._runner.soon(self._core.add, request)

    def abort(self, request_id: str) -> None:
        """End a request; its Output comes with a later step. What the server has done of it is paid."""
        self._runner.soon(self._core.abort, request_id)

    def has_work(self) -> bool:
        """Whether results are to come."""
        return bool(self._known)

    def step(self) -> StepResult:
        """What has come, after some hundredths of a second at most; raises ModelError if no request can be answered."""
        result = StepResult()
        self._steps += 1
        for answer in self._core.mailbox.take(_WAIT):
            self._known.remove(answer.request_id)
            result.add(answer)
        self._counted = self._count()  # before the tokens are taken: no more is counted than is handed over
        for kept in self._core.mailbox.take_kept():
            if kept.request_id in self._known:
                result.new_token_ids[kept.request_id] = kept.token_ids
                result.new_texts[kept.request_id] = NewText(kept.text, kept.prompt_token_ids)
        return result

    @property
    def last_answer_at(self) -> float:
        """When a server last answered a request, or a part of it, in seconds of `time.monotonic`."""
        return self._core.last_answer_at

    def stats(self) -> EngineStats:
        """A snapshot of the last step."""
        return self._counted

    def _count(self) -> EngineStats:
        return self._core.stats(self._steps, self._process.memory_info().rss / 2**20)

    def close(self) -> None:
        """End the loop and its connections (tests; the inference process just ends)."""
        self._runner.run(self._core.close())
        self._runner.close()


class LoopThread:
    """A thread that runs an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run in the loop and wait for the result."""
        future: Future[_Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call in the loop's thread."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

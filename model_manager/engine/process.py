"""The inference process: `python -m millrace.model_manager.engine.process --fd N --model NAME`, started by the manager.

It owns the device. Its loop: receive, schedule, run the model, sample, send. Descriptor N is its end of a socket pair
with the manager, which holds the other; that closing is the end of the process. Knows messages and an Engine; which
engine, and so torch, it imports only once it is told what to load.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TypeGuard

from ..store.checksums import check_sums
from ..store.gguf import is_gguf
from ..store.revisions import check_revision
from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig
from ..wire.engine_messages import (
    LOAD_INTERRUPTED,
    CacheResized,
    EngineFailed,
    EngineReady,
    ManagerToEngine,
    ResizeCache,
    StartEngine,
)
from ..wire.errors import (
    ErrorInfo,
    MillraceError,
    ModelDoesNotFit,
    ModelError,
    ModelLoadFailed,
    ModelLost,
    RequestError,
)
from ..wire.extras import check_engine_extra
from ..wire.imports import importing
from ..wire.machine import is_shortage, shortage
from ..wire.messages import Cancel, Submit
from ..wire.request import Failure, Request
from ..wire.transport import Connection, ConnectionLost, ProtocolError
from .interface import Engine, LoadInterrupted, ResizableEngine, StepResult
from .manager_link import MALFORMED_INPUT, ManagerLink
from .reporting import Reporter
from .this_process import die_with_parent

log = logging.getLogger(__name__)

LOAD_FAILED = 3
"""Exit status if the model could not be loaded; EngineFailed has said why."""
STEP_FAILED = 1
"""Exit status if a step raised; the log says why. Its requests go on in the next process, but after a ModelError: the
manager was told that no next process can do better, and the job fails.
"""


def main(arguments: list[str] | None = None) -> int:
    """Serve until the manager ends it (then this does not return) or something fails; returns the exit status."""
    parser = argparse.ArgumentParser(description="The inference process; the model manager starts it.")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the manager")
    parser.add_argument("--model", default="", help="shown by ps; what to load is told over the socket")
    options = parser.parse_args(arguments)
    die_with_parent(b"millrace-engine")
    logging.basicConfig(
        format=f"%(asctime)s engine[{os.getpid()}] %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr
    )
    connection: Connection[ManagerToEngine] = Connection(socket.socket(fileno=options.fd), ManagerToEngine)
    try:
        start = _first_message(connection)
    except ConnectionLost:
        log.info("ends: the manager is gone")
        return 0
    except ProtocolError as error:
        log.error("ends: malformed input: %s", error)
        return MALFORMED_INPUT
    with ManagerLink(connection, start.heartbeat) as link:
        return run(start, link)


def run(start: StartEngine, link: ManagerLink) -> int:
    """Load, then serve; returns the exit status."""
    try:
        with link.working():
            engine = load_engine(start)
    except LoadInterrupted as interruption:
        log.error("ends: %s", interruption)
        return LOAD_INTERRUPTED
    except Exception as error:
        log.exception("ends: %s is not loaded", start.config.model)
        link.send(EngineFailed(_told(error)))
        return LOAD_FAILED
    log.info("%s is loaded in %.1f s", start.config.model, engine.info.load_seconds)
    link.send(EngineReady(engine.info))
    gc.freeze()  # the collector need not visit the model's objects in every full pass
    try:
        EngineLoop(engine, link).serve()
    except ModelError as error:
        log.error("ends: %s", error)
        link.send(EngineFailed(ModelLost(str(error)).info()))
    except Exception:
        log.exception("ends: a step failed")
    return STEP_FAILED


def _told(error: Exception) -> ErrorInfo:
    if is_shortage(error) and not isinstance(error, MillraceError):
        return ModelDoesNotFit(f"memory is short as the engine starts ({error}): {shortage()}").info()
    return ErrorInfo.of(error, otherwise=ModelLoadFailed)


def load_engine(start: StartEngine) -> Engine:
    """The engine that the configuration names, ready to run; raises ModelError or ConfigError."""
    check_engine_extra(start.config)
    check_revision(start.config.model, Path(start.folder), start.config.revision)
    if BACKENDS[start.config.backend].fetches_files and not is_gguf(start.config.model):
        check_sums(Path(start.folder))
    module, _, function = BACKENDS[start.config.backend].loader.partition(":")
    with importing():
        load: Callable[[ModelConfig, Path], Engine] = getattr(import_module(module), function)
    return load(start.config, Path(start.folder))


class EngineLoop:
    """Messages in, steps, reports out."""

    def __init__(self, engine: Engine, link: ManagerLink, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._link = link
        self._clock = clock
        self._reporter = Reporter(link.send, engine.stats, clock())
        self._refused: list[Failure] = []

    def serve(self) -> None:
        """Loop until ManagerLink ends the process, when the manager wants or needs it.

        What a step raises passes through, after the tokens of the steps before it are sent: after a device error or a
        failed allocation nothing in this process can be relied on.
        """
        while True:
            self._take_in(self._link.receive(wait=not self._engine.has_work()))
            try:
                with self._link.working(steps=1):
                    result = self._engine.step() if self._engine.has_work() else StepResult()
            except BaseException:
                self._reporter.flush()
                raise
            self._report(result)

    def _report(self, result: StepResult) -> None:
        refused, self._refused = self._refused, []
        self._reporter.report(result, refused, self._clock(), idle=not self._engine.has_work())
        if result.cache_bytes is not None:
            self._link.send(CacheResized(result.cache_bytes))

    def _take_in(self, messages: list[ManagerToEngine]) -> None:
        for message in messages:
            if isinstance(message, Submit):
                for request in message.requests:
                    self._add(request)
            elif isinstance(message, Cancel):
                for request_id in message.request_ids:
                    self._engine.abort(request_id)
            elif isinstance(message, ResizeCache) and self._can_resize(self._engine):
                self._engine.resize_cache(message.cache_bytes)
            else:
                log.warning("%s is not expected now and was ignored", type(message).__name__)

    @staticmethod
    def _can_resize(engine: Engine) -> TypeGuard[ResizableEngine]:
        return isinstance(engine, ResizableEngine) and engine.info.cache_bytes > 0

    def _add(self, request: Request) -> None:
        try:
            self._engine.add(request)
        except RequestError as error:
            self._refused.append(Failure(request.request_id, error.info()))
        else:
            self._reporter.accepted(request)


def _first_message(connection: Connection[ManagerToEngine]) -> StartEngine:
    message = connection.receive()
    if not isinstance(message, StartEngine):
        raise ProtocolError(f"a {type(message).__name__} came before StartEngine")
    return message


if __name__ == "__main__":
    sys.exit(main())

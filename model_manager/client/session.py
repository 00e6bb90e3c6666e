"""Session: a model's requests in, futures of their answers out. It reconnects when the manager is lost.

One thread connects and receives, one sends signs of life; callers send on their own threads. When the manager is lost,
the receiving thread finds or starts another and submits the unanswered requests again: every future that `send`
returned is completed. Knows token ids, not where they come from.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any

from msgspec.structs import replace

from ..wire.config import SHARED_SETTINGS, ManagerConfig
from ..wire.errors import (
    EngineError,
    InvalidRequest,
    ManagerUnavailable,
    MillraceError,
    ModelReplaced,
    RequestAborted,
    counted,
)
from ..wire.messages import (
    Cancel,
    CloseModel,
    Credits,
    ManagerToClient,
    ModelFailed,
    ModelReady,
    ModelWarnings,
    OpenModel,
    Pong,
    Progress,
    Results,
    Submit,
)
from ..wire.request import Failure, Output, Request
from ..wire.shared_settings import UnmetSetting, sentence, unmet_settings
from ..wire.status import ModelInfo
from ..wire.transport import ConnectionLost, ProtocolError, encode
from .attempts import Attempts
from .delivery import advance, deliver, fail
from .deltas import Deltas, OnDelta
from .election import Election
from .generation import Decoder
from .ledger import Ledger, Waiter
from .link import Link
from .remote import Remote

_ABANDONED_WITHIN = 0.2
"""Seconds within which a wait for a model notices that `abandoned` is set."""
_FORKED = "this client is process {}'s: a forked process opens its own"

_log = logging.getLogger(__name__)


class WouldWait(Exception):
    """A request has to wait, and its caller does not let it."""


class Session:
    """The connection of one process to one model; thread-safe. Futures are completed on its receiving thread."""

    info: ModelInfo
    """The model, once it takes requests."""
    unmet: list[UnmetSetting]
    """Settings that were asked for and do not hold, once it is ready."""

    def __init__(
        self,
        opening: OpenModel,
        connector: Election | Remote,
        settings: ManagerConfig,
        decoder: Decoder | None,
    ) -> None:
        """`opening` asks for the model; `decoder` makes text of token ids, None where the engine gives text."""
        self._config = opening.config
        self.key = opening.config.key
        """What the manager knows the model by, once it is ready; it is hashed once, not for each request."""
        self._opening = opening
        self._connector = connector
        self._settings = settings
        self._decoder = decoder
        self._pid = os.getpid()
        self._lock = threading.RLock()
        """Guards everything below."""
        self._changed = threading.Condition(self._lock)
        self._ledger = Ledger()
        self._waits: dict[Waiter, Request] = {}
        """Callers that wait for a credit, and that nobody has cancelled."""
        self._link: Link | None = None
        self._ready = False
        self._retired = False
        self._limit = 0
        self._attempts = Attempts(settings.max_manager_losses)
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"millrace-{name}", daemon=True)
            for name, work in (("receive", self._receive), ("watch", self._watch))
        ]
        for thread in self._threads:
            thread.start()
        self._on_cancel = _weakly(self._cancel)
        os.register_at_fork(after_in_child=_weakly(self._forsake))

    # ── what callers do ──────────────────────────────────────────────────────────────────────────────────────────────

    def wait_until_ready(self, abandoned: threading.Event | None = None) -> None:
        """Wait until the model takes requests. Raises what prevents it; RequestAborted once `abandoned` is set."""
        with self._lock:
            while not self._ready:
                self._attempts.raise_if_over(0)
                if abandoned is not None and abandoned.is_set():
                    raise RequestAborted(f"{self._config.model} is not waited for any more")
                self._want()
                self._changed.wait(None if abandoned is None else _ABANDONED_WITHIN)

    def send(self, request: Request, on_delta: OnDelta | None = None) -> Future[Any]:
        """A future of the answer; waits for a credit, and returns once the request is on its way. `on_delta` is given
        the answer as it is generated, if the request asks to be streamed, else in one delta.

        Raises InvalidRequest for what no message can hold, or an id that is outstanding for other work, and what ends
        the waiting: ModelError, EngineLost, ManagerUnavailable, ModelReplaced once it is retired, or RequestAborted if
        the session is closed or the request is cancelled.
        """
        future, link = self._submitted(request, on_delta, may_wait=True)
        if link is not None:
            link.flush()
        return future

    def send_at_once(self, request: Request, on_delta: OnDelta | None = None) -> Future[Any]:
        """As `send`, but raises WouldWait instead of waiting. The request waits in a queue until `flush_at_once` is
        called.
        """
        return self._submitted(request, on_delta, may_wait=False)[0]

    def flush_at_once(self) -> None:
        """Send what is queued, without waiting for a manager that is behind."""
        link = self._link
        if link is not None:
            link.flush_at_once()

    def cancel(self, request_id: str) -> None:
        """End a request: its futures fail with RequestAborted at once, and so does a call of `send` that waits for a
        credit for it. Ids that are not outstanding are ignored.
        """
        self._check_process()
        self._end_waits(request_id)
        self._cancel(request_id, only=None)

    def retire(self) -> None:
        """Take no more requests; outstanding ones go on."""
        with self._lock:
            self._retired = True
            self._changed.notify_all()

    def close(self) -> None:
        """Cancel what is outstanding and let go of the model; again does nothing."""
        if os.getpid() != self._pid or self._closing.is_set():
            return
        self._closing.set()
        closed = RequestAborted("the client is closed")
        with self._lock:
            link, waiters = self._link, self._ledger.clear()
            self._attempts.close(closed)
            self._changed.notify_all()
        if link is not None:
            link.enqueue(CloseModel(self.key, replaced=self._retired))
            link.flush()
            link.close()
        fail(waiters, closed)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # ── on the callers' threads ──────────────────────────────────────────────────────────────────────────────────────

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(_FORKED.format(self._pid))

    def _check_caller(self) -> None:
        self._check_process()
        if threading.current_thread() is self._threads[0]:
            raise RuntimeError("a future's callback may not submit: it runs on the thread that gives the credits")

    def _submitted(
        self, request: Request, on_delta: OnDelta | None, *, may_wait: bool
    ) -> tuple[Future[Any], Link | None]:
        """The future of a request that is queued, and the link to flush."""
        self._check_caller()
        _check_message(Submit(self.key, [request]))
        deltas = None if on_delta is None else Deltas(on_delta, request, self._decoder)
        waiter = Waiter(time.monotonic(), deltas, _CancellableFuture(self._on_cancel, request.request_id))
        return waiter.future, self._register(request, waiter, may_wait=may_wait)

    def _register(self, request: Request, waiter: Waiter, *, may_wait: bool) -> Link | None:
        """Wait for a credit and queue the request on the link. Returns the link to flush; None if the same request is
        outstanding already.
        """
        with self._lock:
            setbacks = self._attempts.setbacks
            self._waits[waiter] = request
            try:
                while True:
                    self._attempts.raise_if_over(setbacks)
                    if self._ledger.join(request, waiter):
                        return None
                    if waiter not in self._waits:
                        raise RequestAborted("cancelled")
                    if self._retired:
                        raise ModelReplaced(f"{self._config.model} takes no more requests: another model has its place")
                    if self._link is not None and self._ready and self._ledger.in_use < self._limit:
                        self._ledger.add(request, waiter)
                        self._link.enqueue(Submit(self.key, [request]))
                        return self._link
                    if not may_wait:
                        raise WouldWait
                    self._want()
                    self._changed.wait()
            finally:
                self._waits.pop(waiter, None)

    def _end_waits(self, request_id: str) -> None:
        """End the waits of callers for a credit: for this request, or for another one of its family."""
        with self._lock:
            for waiter, request in list(self._waits.items()):
                if request_id in (request.request_id, request.family):
                    del self._waits[waiter]
            self._changed.notify_all()

    def _want(self) -> None:
        if not self._attempts.wanted:
            self._attempts.wanted = True
            self._changed.notify_all()

    def _cancel(self, request_id: str, only: Future[Any] | None) -> None:
        """Cancel a request for all who wait for it, or for the holder of one future; it ends when nobody waits."""
        with self._lock:
            gone = self._ledger.cancel(request_id, only)
            link = self._link if gone is not None and self._ready else None
            if link is not None:
                link.enqueue(Cancel(self.key, [request_id]))
        if link is not None:
            link.flush()
        fail(gone or [], RequestAborted("cancelled"))

    # ── the receiving thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self) -> None:
        while self._wait_until_wanted():
            try:
                self._serve()
            except (ConnectionLost, ProtocolError) as error:
                self._recover(error)
            except EngineError as error:
                self._give_up(error, for_good=False)
            except MillraceError as error:
                self._give_up(error, for_good=True)
            except Exception as error:
                mistake = EngineError(f"the client failed: {type(error).__name__}: {error}")
                self._give_up(mistake, for_good=True)
                raise

    def _wait_until_wanted(self) -> bool:
        with self._lock:
            self._changed.wait_for(lambda: self._attempts.wanted or self._closing.is_set())
        return not self._closing.is_set()

    def _serve(self) -> None:
        """Run one connection, from the search for a manager until it ends; raises the error that ends it."""
        connection = self._connector.connect(self._closing)
        link = Link(connection, self._settings.hang_timeout, self._connector.fence)
        try:
            with self._lock:
                self._link = link
            if self._closing.is_set():
                return
            self._compare(link.await_welcome())
            link.enqueue(self._opening)
            link.flush()
            while not self._closing.is_set():
                self._heard(link, link.receive())
        finally:
            with self._lock:
                self._link, self._ready, self._limit = None, False, 0
            link.close()

    def _compare(self, in_force: ManagerConfig) -> None:
        """Before the model is loaded, which may take as long as the manager's own settings let it."""
        if unmet := unmet_settings(self._settings, in_force):
            _warn_once(sentence("the manager", unmet))

    def _heard(self, link: Link, message: ManagerToClient) -> None:
        match message:
            case Progress():
                self._progressed(message)
            case Results():
                self._answered([*message.outputs, *message.failures])
            case Credits():
                with self._lock:
                    self._limit = message.limit
                    self._changed.notify_all()
            case Pong():
                with self._lock:
                    self._ledger.computed(message.computed)
            case ModelReady():
                self._resume(link, message)
            case ModelWarnings():
                for text in message.texts:
                    _warn_once(f"{self._config.model}: {text}")
            case ModelFailed():
                raise message.error.exception()

    def _resume(self, link: Link, message: ModelReady) -> None:
        """The model is ready: submit the unanswered requests again (none on the first connection)."""
        if of_model := [each for each in message.unmet if each.name in SHARED_SETTINGS]:
            _warn_once(sentence(self._config.model, of_model))
        with self._lock:
            self.info, self.unmet = message.info, message.unmet
            self._keep_contents(message)
            requests = self._ledger.reconnected(time.monotonic())
            if requests:
                link.enqueue(Submit(self.key, requests))
            self._ready = True
            self._changed.notify_all()
        link.flush()

    def _keep_contents(self, message: ModelReady) -> None:
        """If the manager found the model, its name and contents are the manager's, and later managers give the same."""
        self.key = message.key
        if not self._opening.folder:
            self._opening = replace(self._opening, revision=message.info.revision)

    def _progressed(self, message: Progress) -> None:
        with self._lock:
            streamed = [self._ledger.progressed(tokens) for tokens in message.tokens]
        for progress in filter(None, streamed):
            advance(*progress)

    def _answered(self, answers: list[Output | Failure]) -> None:
        with self._lock:
            self._attempts.succeeded()
            awaited = [
                (answer, pending)
                for answer in answers
                if (pending := self._ledger.answered(answer.request_id)) is not None
            ]
            self._changed.notify_all()
        for answer, pending in awaited:
            deliver(answer, pending, self._decoder)

    def _recover(self, error: MillraceError) -> None:
        """The connection is lost: pause before the next attempt, or give up after too many."""
        with self._lock:
            pause = self._attempts.lost(is_waited_for=self._ledger.is_waited_for())
            self._changed.notify_all()  # whoever waits for a credit, or for the model, wants it too
        if pause is None:
            times = counted(self._settings.max_manager_losses + 1, "time")
            lost = f"the manager was lost {times} in a row (max_manager_losses): {error}"
            self._give_up(ManagerUnavailable(lost), for_good=False)
        else:
            self._closing.wait(pause)

    def _give_up(self, error: MillraceError, *, for_good: bool) -> None:
        """Fail all outstanding requests and waits. The next request tries again, unless it is `for_good`."""
        with self._lock:
            waiters = self._ledger.clear()
            self._attempts.give_up(error, for_good=for_good)
            self._changed.notify_all()
        fail(waiters, error)

    # ── the watching thread ──────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        interval = min(self._settings.heartbeat, self._settings.hang_timeout / 4)
        while not self._closing.wait(interval):
            with self._lock:
                link = self._link
            if link is not None:
                link.check(interval)

    def _forsake(self) -> None:
        """Let go of the connection in a forked process. It is the parent's, and must end when the parent ends."""
        if self._link is not None:
            self._link.abandon()


class _CancellableFuture(Future[Any]):
    """A request's future; tells that its holder has cancelled it."""

    def __init__(self, on_cancel: Callable[..., None], request_id: str) -> None:
        super().__init__()
        self._on_cancel, self._request_id = on_cancel, request_id

    def cancel(self) -> bool:
        """See Future."""
        if is_cancelled := super().cancel():
            self._on_cancel(self._request_id, self)
        return is_cancelled


def _check_message(message: Submit) -> None:
    """Raises InvalidRequest for a request that the wire does not take: in a message with others it would fail them."""
    try:
        encode(message)
    except Exception as error:  # whatever it is (a number too large, text that is no UTF-8), it is this request's
        raise InvalidRequest(f"the request cannot be sent to the engine: {error}") from None


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """The method, as a callback that does not keep its session alive."""
    reference = weakref.WeakMethod(method)

    def call(*given: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*given)

    return call


@cache
def _warn_once(text: str) -> None:
    """Once a process, however many clients of the model it has."""
    _log.warning("%s", text)

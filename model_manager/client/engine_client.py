"""EngineClient: prompts in, futures of their results out, by way of this machine's manager.

One thread connects and receives, one gives signs of life; callers tokenize and send on their own threads. When the
manager is lost, the receiving thread finds or starts another and submits again what is unanswered: a future that
`submit` returned is always completed, with a result or with one of millrace's errors.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from model_manager.client.adapters import Adapters
from model_manager.client.choices import submit_choices
from model_manager.client.election import MANAGER_COMMAND, Election
from model_manager.client.encoding import Encoding, Prompt, PromptEncoder
from model_manager.client.generation import Generation
from model_manager.client.joined import submit_joined
from model_manager.client.ledger import Ledger, Pending, Waiter, fail
from model_manager.client.link import Link
from model_manager.client.results import Embedding, Score, result_of
from model_manager.client.tokenizing import Tokenizer
from model_manager.client.weak_callbacks import Detaching, Forsaking
from model_manager.store import resolve
from model_manager.wire.config import ManagerConfig, ModelConfig, runtime_dir
from model_manager.wire.errors import (
    ConfigError,
    EngineError,
    InvalidRequest,
    ManagerUnavailable,
    MillraceError,
    ModelError,
    RequestAborted,
)
from model_manager.wire.messages import (
    Cancel,
    CloseModel,
    Credits,
    Failure,
    FinishReason,
    ManagerToClient,
    ModelFailed,
    ModelInfo,
    ModelReady,
    OpenModel,
    Output,
    Pooling,
    Request,
    Results,
    Submit,
)
from model_manager.wire.runtime import RuntimeDir
from model_manager.wire.sampling import SamplingParams
from model_manager.wire.transport import ConnectionLost, ProtocolError

MOST_RECOVERIES = 5
"""Connections lost in a row, with no result between them, after which what is outstanding fails."""
_FORKED = "this client is process {}'s: a forked process opens its own"
_LONGEST_PAUSE = 2.0
"""Seconds between two recoveries, at most."""
_NO_SAMPLING = SamplingParams()


class EngineClient:
    """One model on this machine, for one process; thread-safe, and a context manager.

    Futures are completed on the client's own thread: a callback may do anything but submit.
    """

    info: ModelInfo
    """The loaded model."""

    @classmethod
    def open(
        cls,
        config: ModelConfig,
        *,
        manager: ManagerConfig | None = None,
        job: str = "",
        runtime: Path | None = None,
        chat: bool | None = None,
        manager_command: Sequence[str] = MANAGER_COMMAND,
    ) -> Self:
        """A client whose model is loaded, with whatever had to be started for that.

        `job` names this work in the manager's counts; `chat` is whether a prompt that is plain text goes through the
        model's chat template as one user turn: None is if there is one. `manager_command` starts another manager, for
        tests.
        Raises ModelError when the model cannot be loaded, ManagerUnavailable or EngineLost when no process can be had,
        ConfigError when the runtime folder is not safe, or for a `chat` that the model has no template for.
        """
        folder = resolve(config.model, config.revision).absolute()
        if Path(config.model).expanduser().is_dir():
            config = msgspec.structs.replace(config, model=str(folder))  # the same one from wherever it is named
        if config.draft_model is not None:
            config = msgspec.structs.replace(config, draft_model=_draft_folder(config.draft_model))
        settings = manager or ManagerConfig()
        election = Election(RuntimeDir(runtime or runtime_dir()), settings, manager_command)
        tokenizer = Tokenizer.load(folder)
        if chat and not tokenizer.has_chat_template:
            raise ConfigError(f"chat=True (--chat always): {config.model} has no chat template; takes False or None")
        client = cls(config, folder, tokenizer, election, settings, job=job, chat=chat)
        try:
            client._wait_until_ready()
        except BaseException:
            client.close()
            raise
        return client

    def __init__(
        self,
        config: ModelConfig,
        folder: Path,
        tokenizer: PromptEncoder,
        election: Election,
        settings: ManagerConfig,
        *,
        job: str = "",
        chat: bool | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._config = config
        self._folder = folder
        self._election = election
        self._settings = settings
        self._job = job
        self._encoding = Encoding(tokenizer, chat)
        self._adapters = Adapters(config.max_loras)
        self._pid = os.getpid()
        self._changed = threading.Condition()
        """Guards everything below."""
        self._ledger = Ledger()
        self._link: Link | None = None
        self._ready = False
        self._limit = 0
        self._wanted = True
        self._recoveries = 0
        self._setbacks = 0
        self._setback: MillraceError | None = None
        self._final: MillraceError | None = None
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"millrace-{name}", daemon=True)
            for name, work in (("receive", self._receive), ("watch", self._watch))
        ]
        for thread in self._threads:
            thread.start()
        os.register_at_fork(after_in_child=Forsaking(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ── what callers do ──────────────────────────────────────────────────────────────────────────────────────────────

    def submit(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str, job: str | None = None
    ) -> Future[Generation]:
        """A future of the prompt's Generation; waits for a credit, and returns once the request is on its way.

        The prompt is text, chat messages or token ids. The same id again, while it is outstanding, waits for the same
        answer. For n > 1 each answer takes a credit. Raises PromptTooLong or InvalidRequest at once; ModelError,
        EngineLost or ManagerUnavailable if the model is lost while it waits; RequestAborted if the client is closed.
        """
        ids = self._encoding.prompt(prompt, self.info, room=1)
        adapter = self._adapters.of(params.adapter)
        request = Request(request_id, ids, params, job=self._job if job is None else job, adapter=adapter)
        return self._send(request) if params.n == 1 else submit_choices(self._send, request)

    def score(
        self,
        prompt: Prompt,
        continuations: Sequence[str | Sequence[int]],
        params: SamplingParams = _NO_SAMPLING,
        *,
        request_id: str,
    ) -> Future[list[Score]]:
        """A future of the log-probabilities of each continuation of the prompt; otherwise as `submit`.

        Each takes a credit; their common beginning is computed once where the prefix cache is on. Of the parameters
        only those count that are not of sampling: priority, deadline, cache_salt and adapter. Encoding.continued says
        which tokens are scored.
        """
        adapter = self._adapters.of(params.adapter)
        encoded = [self._encoding.continued(prompt, continuation, self.info) for continuation in continuations]
        if not encoded:
            raise InvalidRequest("continuations: takes at least one")
        requests = [
            Request(
                f"{request_id}#{index}" if index else request_id,
                ids,
                params.unsampled(),
                job=self._job,
                family=request_id,
                task="score",
                score_from=first,
                adapter=adapter,
            )
            for index, (ids, first) in enumerate(encoded)
        ]
        return submit_joined(self._send, requests, list)

    def embed(
        self,
        prompt: Prompt,
        params: SamplingParams = _NO_SAMPLING,
        *,
        request_id: str,
        pooling: Pooling = "last",
        normalize: bool = True,
    ) -> Future[Embedding]:
        """A future of the prompt's vector; otherwise as `score`."""
        ids = self._encoding.prompt(prompt, self.info)
        return self._send(
            Request(
                request_id,
                ids,
                params.unsampled(),
                job=self._job,
                task="embed",
                pooling=pooling,
                normalize=normalize,
                adapter=self._adapters.of(params.adapter),
            )
        )

    def cancel(self, request_id: str) -> None:
        """End a request: its futures fail with RequestAborted at once. Ids that are not outstanding are ignored."""
        if os.getpid() != self._pid:
            raise RuntimeError(_FORKED.format(self._pid))
        self._cancel(request_id, only=None)

    def close(self) -> None:
        """Cancel what is outstanding and let go of the model; again does nothing."""
        if os.getpid() != self._pid or self._closing.is_set():
            return
        self._closing.set()
        with self._changed:
            link, waiters = self._link, self._ledger.clear()
            self._final = RequestAborted("the client is closed")
            self._changed.notify_all()
        if link is not None:
            link.enqueue(CloseModel(self._config.key))
            link.flush()
            link.close()
        fail(waiters, self._final)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _check_caller(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(_FORKED.format(self._pid))
        if threading.current_thread() is self._threads[0]:
            raise RuntimeError("a future's callback may not submit: it runs on the thread that gives the credits")

    # ── submitting ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, request: Request) -> Future[Any]:
        self._check_caller()
        waiter = Waiter(since=time.monotonic())
        link = self._register(request, waiter)
        if link is not None:
            link.flush()
        waiter.future.add_done_callback(Detaching(self, request.request_id))
        return waiter.future

    def _register(self, request: Request, waiter: Waiter) -> Link | None:
        """Enter the request; the link that is to be flushed, if the request is not on its way already."""
        with self._changed:
            setbacks = self._setbacks
            while True:
                self._raise_if_over(setbacks)
                if self._ledger.join(request, waiter):
                    return None
                if self._link is not None and self._ready and self._ledger.in_use < self._limit:
                    self._ledger.add(request, waiter)
                    self._link.enqueue(Submit(self._config.key, [request]))
                    return self._link
                self._want()
                self._changed.wait()

    def _raise_if_over(self, setbacks: int) -> None:
        if self._final is not None:
            raise self._final
        if self._setbacks != setbacks:
            assert self._setback is not None, "a setback has a reason"
            raise self._setback

    def _want(self) -> None:
        if not self._wanted:
            self._wanted = True
            self._changed.notify_all()

    def detach(self, request_id: str, future: Future[Any]) -> None:
        """The holder of that future has cancelled it; its request ends, unless others wait for the same."""
        self._cancel(request_id, only=future)

    def _cancel(self, request_id: str, only: Future[Any] | None) -> None:
        with self._changed:
            gone = self._ledger.cancel(request_id, only)
            link = self._link if gone is not None and self._ready else None
            if link is not None:
                link.enqueue(Cancel(self._config.key, [request_id]))
        if link is not None:
            link.flush()
        fail(gone or [], RequestAborted("cancelled"))

    def _wait_until_ready(self) -> None:
        with self._changed:
            while not self._ready:
                self._raise_if_over(0)
                self._want()
                self._changed.wait()

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
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._closing.is_set())
        return not self._closing.is_set()

    def _serve(self) -> None:
        """One connection, from the election to its end, which is always an exception."""
        link = Link(self._election.connect(self._closing), self._settings.hang_timeout)
        try:
            with self._changed:
                self._link = link
            if self._closing.is_set():
                return
            link.await_welcome()
            link.enqueue(OpenModel(self._config, str(self._folder)))
            link.flush()
            while not self._closing.is_set():
                self._heard(link, link.receive())
        finally:
            with self._changed:
                self._link, self._ready, self._limit = None, False, 0
            link.close()

    def _heard(self, link: Link, message: ManagerToClient) -> None:
        match message:
            case Results():
                self._complete(message)
            case Credits():
                with self._changed:
                    self._limit = message.limit
                    self._changed.notify_all()
            case ModelReady():
                self._resume(link, message)
            case ModelFailed():
                raise message.error.exception()

    def _resume(self, link: Link, message: ModelReady) -> None:
        """The model is there: submit again what is unanswered, which on the first connection is nothing."""
        with self._changed:
            self.info = message.info
            requests = self._ledger.reconnected()
            if requests:
                link.enqueue(Submit(self._config.key, requests))
            self._ready = True
            self._changed.notify_all()
        link.flush()

    def _complete(self, results: Results) -> None:
        with self._changed:
            self._recoveries = 0
            answers: list[Output | Failure] = [*results.outputs, *results.failures]
            answered = [
                (answer, pending)
                for answer in answers
                if (pending := self._ledger.answered(answer.request_id)) is not None
            ]
            self._changed.notify_all()
        for answer, pending in answered:
            if isinstance(answer, Output):
                self._deliver(answer, pending)
            else:
                fail(pending.waiters, answer.error.exception())

    def _deliver(self, output: Output, pending: Pending) -> None:
        if output.finish_reason is FinishReason.ABORT:
            fail(pending.waiters, RequestAborted("cancelled"))
            return
        now = time.monotonic()
        for waiter in pending.waiters:
            try:
                result = result_of(output, pending.request, self.tokenizer, now - waiter.since)
            except Exception as error:  # a tokenizer's, about these tokens alone
                fail([waiter], error)
            else:
                if waiter.future.set_running_or_notify_cancel():
                    waiter.future.set_result(result)

    def _recover(self, error: MillraceError) -> None:
        """The connection is lost: try again if anyone needs it, and not for ever."""
        with self._changed:
            self._recoveries += 1
            recoveries = self._recoveries
            self._wanted = self._ledger.is_waited_for()
            self._changed.notify_all()  # whoever waits for a credit, or for the model, wants it too
        if recoveries > MOST_RECOVERIES:
            lost = f"the manager was lost {recoveries} times in a row: {error}"
            self._give_up(ManagerUnavailable(lost), for_good=False)
        elif recoveries > 1:
            self._closing.wait(min(_LONGEST_PAUSE, 0.05 * 2**recoveries))

    def _give_up(self, error: MillraceError, *, for_good: bool) -> None:
        """Everything outstanding fails, and whoever waits is told; unless for good, the next submit tries again."""
        with self._changed:
            waiters = self._ledger.clear()
            self._setback, self._setbacks = error, self._setbacks + 1
            self._recoveries = 0
            self._wanted = False
            if for_good and self._final is None:
                self._final = error
            self._changed.notify_all()
        fail(waiters, error)

    # ── the watching thread ──────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        interval = min(self._settings.heartbeat, self._settings.hang_timeout / 4)
        while not self._closing.wait(interval):
            with self._changed:
                link = self._link
            if link is not None:
                link.check(interval)

    def forsake(self) -> None:
        """In a forked process: the connection is the parent's, and must end when the parent ends."""
        if self._link is not None:
            self._link.abandon()


def _draft_folder(draft_model: str) -> str:
    """The folder of a draft model, as the engine takes it; raises ModelError, saying which of the two models it is."""
    try:
        return str(resolve(draft_model).absolute())
    except ModelError as error:
        raise type(error)(f"draft_model: {error}") from None

"""EngineClient: prompts in, futures of their results out, through this machine's manager.

Callers tokenize on their own threads; the Session sends the requests and completes the futures.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from ..wire.backends import BACKENDS, Backend
from ..wire.config import ManagerConfig, ModelConfig
from ..wire.errors import ConfigError, InvalidRequest
from ..wire.manager_place import manager_place
from ..wire.request import LONGEST_NAME, Adapter, Output, Pooling, Request
from ..wire.sampling import SamplingParams
from ..wire.shared_settings import UnmetSetting
from ..wire.status import ModelInfo
from ..wire.traces import Traces
from .access import access_to
from .adapter_lookup import Adapters
from .choices import SendStreamed, submit_choices
from .deltas import OnDelta
from .election import MANAGER_COMMAND
from .encoding import Encoding, PromptContent, TextPrompts
from .joined import callers_id, sibling_id, submit_joined
from .session import Session, WouldWait
from .tokenizing import Tokenizer

_NO_SAMPLING = SamplingParams()


class EngineClient:
    """One model of a manager, for one process; thread-safe, and a context manager.

    Futures are completed on the client's own thread: a callback may do anything but submit.
    """

    @classmethod
    def open(
        cls,
        config: ModelConfig,
        *,
        manager: ManagerConfig | None = None,
        job: str = "",
        serves: bool = False,
        runtime: Path | None = None,
        chat: bool | None = None,
        manager_command: Sequence[str] = MANAGER_COMMAND,
        abandoned: threading.Event | None = None,
        traces: Traces | None = None,
        adapters: Adapters | None = None,
        on_demand: bool = False,
    ) -> Self:
        """A client whose model is loaded; starts the manager and the engine if need be. A manager at a TCP address is
        not started here: it finds the model by its name, and the client only the tokenizer.

        `job` names this work in the manager's counts and shares; by default each client is a job of its own. `serves`
        says that it is a server's, which counts its requests itself (`Request.served`). `chat` is whether a prompt that
        is plain text goes through the model's chat template as one user turn: None is if there is one.
        `manager_command` starts another manager, for tests. Another thread sets `abandoned` to end the wait for the
        model with RequestAborted. `traces` is where spans of requests go, below the span that is current where they are
        submitted. `adapters` is a look-up that the caller has used already, so that nothing is hashed again.
        `on_demand`: where the models in use do not all fit in memory, a model that this machine has loaded before is
        loaded for its first request.
        Raises ModelError when the model cannot be loaded, ManagerUnavailable or EngineLost when no process can be had,
        ConfigError when the runtime folder or the key file is not safe, or for a `chat` that the model has no template
        for.
        """
        if len(job) > LONGEST_NAME:
            raise ConfigError(f"job of {len(job)} characters: takes at most {LONGEST_NAME}")
        backend, settings = BACKENDS[config.backend], manager or ManagerConfig()
        access = access_to(manager_place(settings, runtime), config, settings, manager_command)
        tokenizer: Tokenizer | None = None
        encoding: Encoding | TextPrompts = TextPrompts(backend.name, chat)
        if backend.takes == "tokens":
            tokenizer = Tokenizer.load(access.folder)
            encoding = Encoding(tokenizer, chat, config.max_model_len)
            _check_chat(config.model, tokenizer, chat)
        opening = replace(access.opening, on_demand=on_demand)
        session = Session(opening, access.connector, settings, tokenizer)
        try:
            session.wait_until_ready(abandoned)
        except BaseException:
            session.close()
            raise
        adapters, model = adapters or access.adapters, config.model
        return cls(
            session,
            backend,
            encoding,
            adapters,
            tokenizer=tokenizer,
            model=model,
            job=job,
            serves=serves,
            traces=traces,
        )

    def __init__(
        self,
        session: Session,
        backend: Backend,
        encoding: Encoding | TextPrompts,
        adapters: Adapters,
        *,
        tokenizer: Tokenizer | None = None,
        model: str = "",
        job: str = "",
        serves: bool = False,
        traces: Traces | None = None,
    ) -> None:
        """Takes a session whose model is ready, and closes it in the end. Use `open`, which makes everything."""
        self.model = model
        """The name of the model, as it was asked for."""
        self._tokenizer = tokenizer
        self._session = session
        self._traces = traces
        self._send: SendStreamed = session.send if traces is None else _traced(session.send, traces, model)
        self._send_at_once: SendStreamed = session.send_at_once if traces is None else _would_wait
        self._backend = backend
        self._encoding = encoding
        self._adapters = adapters
        self._job = job or f"client, {socket.gethostname()}, pid {os.getpid()}, {uuid.uuid4().hex[:8]}"
        self._serves = serves

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's. Raises ConfigError where the engine has its own and takes text."""
        if self._tokenizer is None:
            raise ConfigError(f"backend={self._backend.name!r}: takes text, so there is no tokenizer here")
        return self._tokenizer

    @property
    def info(self) -> ModelInfo:
        """The model, as it was loaded, or at an earlier load."""
        return self._session.info

    @property
    def key(self) -> str:
        """The manager's key of the model: the same for equal contents and settings."""
        return self._session.key

    @property
    def unmet(self) -> list[UnmetSetting]:
        """Settings that `open` asked for and that are not in force: another client had started the model or the manager
        with other settings.
        """
        return self._session.unmet

    def encoded(self, prompt: PromptContent, *, room: int = 1) -> PromptContent:
        """The prompt as token ids, so that `submit` has nothing to compute; as it is where the engine takes text.

        Raises PromptTooLong, where it leaves fewer than `room` positions, or InvalidRequest.
        """
        return self._encoding.fields(prompt, self.info, room=room)["prompt_token_ids"] or prompt

    def find_adapter(self, name: str) -> Adapter | None:
        """The LoRA adapter of that name, for `submit` and `embed`; None for an empty one. It may take long: its files
        are read, and hashed if they have changed, or fetched, or the manager at a TCP address is asked.

        Raises InvalidRequest if there is none, ManagerUnavailable.
        """
        return self._adapters.of(name)

    def submit(
        self,
        prompt: PromptContent,
        params: SamplingParams,
        *,
        request_id: str,
        job: str | None = None,
        on_delta: OnDelta | None = None,
        may_be_cut: bool = False,
        may_wait: bool = True,
        adapter: Adapter | None = None,
    ) -> Future[Output]:
        """A future of the prompt's answer; waits for a credit, and returns once the request is on its way.

        The prompt is text, chat messages or token ids. The same id again, while it is outstanding, waits for the same
        answer. For n > 1 each answer takes a credit. Raises PromptTooLong or InvalidRequest at once; ModelError,
        EngineLost or ManagerUnavailable if the model is lost while it waits; ModelReplaced if the client is retired;
        RequestAborted if it is closed, or if another thread cancels the request.

        `on_delta` is called on the client's own thread with what is new of the answer each time that there is more of
        it, the last time before the future is completed. Joined, the texts of an answer's deltas are its text, and
        their token ids its token ids (deltas.py says what is held back). An engine that takes text gives one delta.

        `may_be_cut`: an output that `max_tokens` cuts before it meets its constraint is an answer, with `is_cut`.

        `may_wait=False`: raises WouldWait where no credit is free, where n > 1, where an adapter is to be looked up,
        and where requests are traced. The request waits in a queue until `flush_at_once` sends all that are there in
        one message.

        `adapter`: what `find_adapter` gives for `params.adapter`; by default it is looked up here.
        """
        if params.n > 1 and not may_wait:
            raise WouldWait
        self._backend.check_params(params)
        adapter = adapter or self._looked_up(params, may_wait=may_wait)
        fields = self._encoding.fields(prompt, self.info, room=1)
        request = Request(
            callers_id(request_id),
            params=params,
            job=self._job if job is None else job,
            adapter=adapter,
            stream=on_delta is not None,
            may_be_cut=may_be_cut,
            served=self._serves,
            **fields,
        )
        send = self._send if may_wait else self._send_at_once
        return send(request, on_delta) if params.n == 1 else submit_choices(send, request, on_delta)

    def score(
        self,
        prompt: PromptContent,
        continuations: Sequence[str | Sequence[int]],
        params: SamplingParams = _NO_SAMPLING,
        *,
        request_id: str,
    ) -> Future[list[Output]]:
        """A future of the log-probabilities of each continuation of the prompt; otherwise as `submit`.

        Each continuation takes a credit; their common beginning is computed once where the prefix cache is on. Only
        priority, deadline, cache_salt and adapter count of the parameters. Context.continued says which tokens are
        scored.
        """
        params = params.unsampled()
        self._backend.check_params(params)
        family, adapter = callers_id(request_id), self._adapters.of(params.adapter)
        context = self._encoding.context(prompt, self.info)
        encoded = [context.continued(continuation) for continuation in continuations]
        if not encoded:
            raise InvalidRequest("continuations: takes at least one")
        requests = [
            Request(
                sibling_id(family, index),
                ids,
                params,
                job=self._job,
                family=family,
                task="score",
                score_from=first,
                adapter=adapter,
                served=self._serves,
            )
            for index, (ids, first) in enumerate(encoded)
        ]
        return submit_joined(lambda each: self._send(each, None), requests, list)

    def embed(
        self,
        prompt: PromptContent,
        params: SamplingParams = _NO_SAMPLING,
        *,
        request_id: str,
        pooling: Pooling = "last",
        normalize: bool = True,
        may_wait: bool = True,
        adapter: Adapter | None = None,
    ) -> Future[Output]:
        """A future of the prompt's vector; otherwise as `score`; `may_wait` and `adapter` as for `submit`."""
        params = params.unsampled()
        self._backend.check_params(params)
        adapter = adapter or self._looked_up(params, may_wait=may_wait)
        fields = self._encoding.fields(prompt, self.info)
        send = self._send if may_wait else self._send_at_once
        return send(
            Request(
                callers_id(request_id),
                params=params,
                job=self._job,
                task="embed",
                pooling=pooling,
                normalize=normalize,
                adapter=adapter,
                served=self._serves,
                **fields,
            ),
            None,
        )

    def _looked_up(self, params: SamplingParams, *, may_wait: bool) -> Adapter | None:
        if params.adapter and not may_wait:
            raise WouldWait
        return self._adapters.of(params.adapter)

    def flush_at_once(self) -> None:
        """Send what was submitted with `may_wait=False`; another thread sends what the manager does not take now."""
        self._session.flush_at_once()

    def cancel(self, request_id: str) -> None:
        """End a request: its futures fail with RequestAborted at once, and so does a call that waits for a credit for
        it. The engine drops it before its next step. Ids that are not outstanding are ignored.
        """
        self._session.cancel(request_id)

    def retire(self) -> None:
        """Take no more requests, as another model replaces this one: waiting and later calls raise ModelReplaced.

        Outstanding requests go on.
        """
        self._session.retire()

    def close(self) -> None:
        """Cancel what is outstanding and let go of the model; again does nothing."""
        self._session.close()
        if self._traces is not None:
            from .trace_export import flush

            flush(self._traces)


def _traced(send: SendStreamed, traces: Traces, model: str) -> SendStreamed:
    """The same, with a span for each request."""
    from .request_spans import RequestSpans  # imports OpenTelemetry, which few need
    from .trace_export import tracer

    return partial(RequestSpans(tracer(traces), model).send, send)


def _would_wait(_request: Request, _on_delta: OnDelta | None) -> Future[Any]:
    raise WouldWait


def _check_chat(model: str, tokenizer: Tokenizer, chat: bool | None) -> None:
    if chat and not tokenizer.has_chat_template:
        raise ConfigError(
            f"{model} has no chat template, which chat=True (--chat always) and system (--system) need: "
            "leave them out, or name another model"
        )

"""An Engine over llama.cpp's server: a line of requests, and a thread for each slot that takes the next of them.

The server batches what its slots run. Here is who runs when (priority, then arrival), deadlines, cancelling, and when a
request counts as ended. Text goes in and text comes out, so after a death a request is asked again from its beginning.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...engine.counters import EngineCounters
from ...engine.interface import StepResult
from ...engine.sampling.token_rules import check_token_ids
from ...wire.errors import DeadlineExceeded, InvalidRequest, RequestError
from ...wire.request import Failure, FinishReason, Output, Request
from ...wire.status import EngineStats, ModelInfo
from ...wire.timings import Timings
from .exchange import IncomingReply, LlamaServer, PartialAnswer, meets_constraint


@dataclass(order=True)
class _Work:
    """A request, from its arrival to its end."""

    rank: tuple[int, int]
    request: Request = field(compare=False)
    added_at: float = field(compare=False)
    reply: IncomingReply = field(default_factory=IncomingReply, compare=False)
    started_at: float | None = field(default=None, compare=False)
    error: Exception | None = field(default=None, compare=False)
    counted: int = field(default=0, compare=False)
    """Parts of the reply that the counters have."""

    @property
    def deadline(self) -> float | None:
        seconds = self.request.params.deadline
        return None if seconds is None else self.added_at - self.request.waited + seconds


class LlamaCppEngine:
    """Continuous batching by llama.cpp."""

    def __init__(self, info: ModelInfo, server: LlamaServer, clock: Callable[[], float] = time.monotonic) -> None:
        self.info = info
        self._server = server
        self._clock = clock
        self._line: queue.PriorityQueue[_Work] = queue.PriorityQueue()
        self._works: dict[str, _Work] = {}
        self._over: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        """Works whose reply is complete, or that failed."""
        self._news = threading.Event()
        self._ended: list[Output | Failure] = []
        self._arrivals = 0
        self._counters = EngineCounters(clock)
        for number in range(info.max_num_seqs):
            threading.Thread(target=self._serve, name=f"slot-{number}", daemon=True).start()

    def add(self, request: Request) -> None:
        """Queue a request; raises InvalidRequest for one without text, or with a `logit_bias` of no token of the model.
        What only the server knows fails it later.
        """
        if not request.text and not request.messages:
            raise InvalidRequest("prompt: the back end llama_cpp takes text or messages")
        if request.request_id in self._works:
            raise InvalidRequest(f"request_id={request.request_id!r}: is running already")
        check_token_ids(request.params, self.info.vocab_size)
        self._arrivals += 1
        work = _Work((request.params.priority, self._arrivals), request, self._clock())
        self._works[request.request_id] = work
        self._line.put(work)

    def abort(self, request_id: str) -> None:
        """End a request; its Output, with the text it has, comes with the next step. Unknown ids are ignored."""
        work = self._works.get(request_id)
        if work is not None:
            self._end(work, FinishReason.ABORT)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._works or self._ended)

    def step(self) -> StepResult:
        """Wait until some request has got tokens, and collect what ended. A server that is stuck leaves the step
        unended, which the manager sees.
        """
        if not self._ended:
            self._news.wait()
        self._news.clear()
        self._collect()
        self._expire()
        self._count()
        result = StepResult()
        for answer in self._ended:
            result.add(answer)
        self._ended.clear()
        self._counters.steps += 1
        return result

    def stats(self) -> EngineStats:
        """A snapshot."""
        running = sum(work.started_at is not None for work in self._works.values())
        return EngineStats(running=running, waiting=len(self._works) - running, **self._counters.snapshot())

    def _serve(self) -> None:
        """One slot's thread: the next of the line, again and again."""
        while True:
            work = self._line.get()
            if work.reply.is_cancelled:
                continue
            work.started_at = self._clock()
            try:
                self._server.complete(work.request, work.reply, self._news.set)
            except Exception as error:
                work.error = error
            self._over.put(work)
            self._news.set()

    def _collect(self) -> None:
        """End what is over; raises what is wrong with the server."""
        while not self._over.empty():
            work = self._over.get()
            if self._works.get(work.request.request_id) is not work or work.reply.is_cancelled:
                continue
            try:
                if work.error is not None:
                    raise work.error
                answer = work.reply.answer(work.request.params.logprobs or 0)
                is_cut = not meets_constraint(work.request, answer)
                if answer.reason is None:
                    raise RuntimeError("llama.cpp ended an answer without saying why")
                self._leave(work, self._output(work, answer, answer.reason, is_cut=is_cut))
            except RequestError as error:
                self._leave(work, Failure(work.request.request_id, error.info()))

    def _expire(self) -> None:
        now = self._clock()
        for work in [work for work in self._works.values() if work.deadline is not None and work.deadline <= now]:
            self._end(work, FinishReason.DEADLINE)

    def _end(self, work: _Work, reason: FinishReason) -> None:
        """End a request early, with what it has."""
        work.reply.cancel()
        try:
            answer = work.reply.answer(work.request.params.logprobs or 0)
        except RequestError as error:
            self._leave(work, Failure(work.request.request_id, error.info()))
            return
        held = work.request.params.constraint is not None
        if reason is FinishReason.DEADLINE and (held or not answer.num_tokens):
            missing = "complete output" if held else "token"
            late = DeadlineExceeded(f"no {missing} after deadline={work.request.params.deadline} seconds")
            self._leave(work, Failure(work.request.request_id, late.info()))
        else:
            self._leave(work, self._output(work, answer, reason))

    def _leave(self, work: _Work, answer: Output | Failure) -> None:
        del self._works[work.request.request_id]
        self._count_parts(work)
        self._ended.append(answer)

    def _output(self, work: _Work, answer: PartialAnswer, reason: FinishReason, *, is_cut: bool = False) -> Output:
        params, now = work.request.params, self._clock()
        self._counters.prompted(answer.prompt_tokens, answer.cached_tokens)
        stopped = answer.stop or ""

        def since(event: float | None) -> float:
            return work.request.waited + (now if event is None else event) - work.added_at

        return Output(
            request_id=work.request.request_id,
            token_ids=answer.token_ids,
            finish_reason=reason,
            timings=Timings(since(work.started_at), since(work.reply.first_at), since(now)),
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            stop_reason=answer.stop,
            is_cut=is_cut,
            logprobs=answer.logprobs if params.logprobs is not None else None,
            text=answer.text + (stopped if params.include_stop_str_in_output else ""),
            num_tokens=answer.num_tokens,
        )

    def _count(self) -> None:
        for work in self._works.values():
            self._count_parts(work)

    def _count_parts(self, work: _Work) -> None:
        """About one part is one token."""
        parts = len(work.reply.pieces)
        if parts > work.counted:
            self._counters.generated(self._clock(), parts - work.counted)
            work.counted = parts

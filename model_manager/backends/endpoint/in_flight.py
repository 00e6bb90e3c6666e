"""The queue and the requests in flight. Each request ends once. Knows who sends them; not how.

`_finish` is the only way out: it takes the request out of the table and posts its one result.
"""

from __future__ import annotations

import asyncio
import math
import struct
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from ...engine.counters import Throughput
from ...wire.config import ModelConfig
from ...wire.endpoint_options import EndpointOptions
from ...wire.errors import DeadlineExceeded, RequestError
from ...wire.request import Failure, FinishReason, Output, Request
from ...wire.status import EngineStats
from ...wire.timings import Setback, Timings
from .balancer import Balancer
from .connections import connections
from .cut_answers import is_cut
from .dialects import Dialect, ServerAnswer
from .health_route import HealthRoute
from .mailbox import Mailbox
from .over_http import HttpConnections
from .probing import probe
from .sending import Sender
from .streams import Kept


@dataclass
class _Entry:
    """A request that has no result yet."""

    request: Request
    added: float
    started: float | None = None
    first_token: float | None = None
    """When the first token that is kept had come."""
    num_kept: int = 0
    """Tokens that are kept, of those that this engine's servers have generated."""
    text: str = ""
    """The text of these tokens."""
    prompt_tokens: int = 0
    """How many tokens the prompt has, once the server has told its token ids; else 0."""
    task: asyncio.Task[None] | None = None
    alarm: asyncio.TimerHandle | None = None

    def so_far(self, reason: FinishReason) -> ServerAnswer:
        """What is kept, as the answer of a request that ends for this reason."""
        request = self.request
        return ServerAnswer(
            text=request.output_text + self.text,
            finish_reason=reason,
            num_tokens=len(request.output_token_ids) + self.num_kept,
            prompt_tokens=len(request.prompt_token_ids) or self.prompt_tokens,
        )


class EndpointRequests:
    """The queue and the requests in flight; only for the loop's thread, but for the mailbox and the counters."""

    def __init__(self, sender: Sender, most: int, resources: AsyncExitStack) -> None:
        self.mailbox = Mailbox()
        self.most = most
        self.last_answer_at = -math.inf
        """When a server last answered a request, or a part of it, on the loop's clock. Refusals are no answers."""
        self._sender = sender
        self._resources = resources
        self._loop = asyncio.get_running_loop()
        self._entries: dict[str, _Entry] = {}
        self._queue: asyncio.PriorityQueue[tuple[int, int, str]] = asyncio.PriorityQueue()
        self._arrivals = 0
        self._running = 0
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0
        self._throughput = Throughput(self._loop.time())
        self._counting = threading.Lock()
        """The lock of `_throughput`, which is read in another thread than it is written in."""

    @classmethod
    async def start(
        cls, config: ModelConfig, options: EndpointOptions, dialect: Dialect, key: str, health: str = ""
    ) -> EndpointRequests:
        """Open the connections, and probe each server first. `health`: see `connect`."""
        clock = asyncio.get_running_loop().time
        async with AsyncExitStack() as resources:
            connected = await resources.enter_async_context(connections(options, key))
            balancer = Balancer(options.addresses, options.max_connections, clock)
            await probe(options, dialect, connected, balancer, clock)
            most = min(config.max_num_seqs, options.max_connections * len(options.addresses))
            route = None
            if health:
                route = HealthRoute(await resources.enter_async_context(HttpConnections(options, key)), health)
            sender = Sender(options, dialect, connected, balancer, clock, route)
            return cls(sender, most, resources.pop_all())
        raise AssertionError("a context manager of resources hides no error")

    def add(self, request: Request) -> None:
        """Queue a request."""
        if not self._entries:
            self._sender.wakes()
        entry = _Entry(request, self._loop.time())
        self._entries[request.request_id] = entry
        self._arrivals += 1
        self._queue.put_nowait((request.params.priority, self._arrivals, request.request_id))
        if request.params.deadline is not None:
            left = max(0.0, request.params.deadline - request.waited)
            entry.alarm = self._loop.call_later(left, self._expire, request.request_id)
        self._pump()

    def abort(self, request_id: str) -> None:
        """End a request, with what it has."""
        if (entry := self._entries.get(request_id)) is not None:
            self._finish(entry, self._output(entry, entry.so_far(FinishReason.ABORT)))

    def _expire(self, request_id: str) -> None:
        entry = self._entries[request_id]
        if (answer := entry.so_far(FinishReason.DEADLINE)).num_tokens:
            self._finish(entry, self._output(entry, answer))
            return
        error = DeadlineExceeded(f"no token after deadline={entry.request.params.deadline} seconds")
        self._finish(entry, Failure(request_id, error.info()))

    def _pump(self) -> None:
        """Start what there is room for, the most urgent first."""
        while self._running < self.most and not self._queue.empty():
            *_, request_id = self._queue.get_nowait()
            entry = self._entries.get(request_id)
            if entry is not None and entry.task is None:
                self._running += 1
                entry.started = self._loop.time()
                entry.task = self._loop.create_task(self._run(entry))

    async def _run(self, entry: _Entry) -> None:
        try:
            answer = await self._sender.send(entry.request, partial(self._keep, entry))
            self.last_answer_at = self._loop.time()
            self._finish(entry, self._output(entry, answer))
        except RequestError as error:
            self._finish(entry, Failure(entry.request.request_id, error.info()))
        except Exception as error:
            self.mailbox.fail(error)
        finally:
            self._running -= 1
            self._pump()

    def _keep(self, entry: _Entry, kept: Kept) -> None:
        """Keep further tokens of a request's answer."""
        now, count = self._loop.time(), len(kept.token_ids)
        self.last_answer_at = now
        entry.first_token = now if entry.first_token is None else entry.first_token
        entry.num_kept += count
        entry.text += kept.text
        entry.prompt_tokens = entry.prompt_tokens or len(kept.prompt_token_ids)
        self._count(now, count)
        self.mailbox.keep(kept)

    def _count(self, now: float, generated: int) -> None:
        self._generated_tokens += generated
        with self._counting:
            self._throughput.add(now, generated)

    def _finish(self, entry: _Entry, result: Output | Failure) -> None:
        """End a request with its one result."""
        if self._entries.get(entry.request.request_id) is not entry:
            return
        del self._entries[entry.request.request_id]
        if entry.alarm is not None:
            entry.alarm.cancel()
        if entry.task is not None and entry.task is not asyncio.current_task():
            entry.task.cancel()
        self.mailbox.put(result)

    def _output(self, entry: _Entry, answer: ServerAnswer) -> Output:
        """Count an answer, and make it a result; raises ConstraintNotMet for half a one."""
        now, waited = self._loop.time(), entry.request.waited
        self._prompt_tokens += answer.prompt_tokens
        self._cached_tokens += answer.cached_tokens
        self._count(now, max(0, answer.num_tokens - len(entry.request.output_token_ids) - entry.num_kept))
        started = now if entry.started is None else entry.started
        first_token = now if entry.first_token is None else entry.first_token
        queued, first_token, finished = (waited + each - entry.added for each in (started, first_token, now))
        return Output(
            request_id=entry.request.request_id,
            token_ids=[],
            finish_reason=answer.finish_reason,
            timings=Timings(queued=queued, first_token=first_token, finished=finished),
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            stop_reason=answer.stop_reason,
            embedding=_packed(answer.embedding, normalize=entry.request.normalize),
            logprobs=answer.logprobs,
            setbacks=[Setback("sent_again", waited + at - entry.added) for at in answer.retried],
            text=answer.text,
            num_tokens=answer.num_tokens,
            is_cut=is_cut(entry.request, answer),
        )

    def stats(self, steps: int, rss_mb: float) -> EngineStats:
        """A snapshot."""
        with self._counting:
            tokens_per_s = self._throughput.rate(self._loop.time())
        return EngineStats(
            running=self._running,
            waiting=max(0, len(self._entries) - self._running),
            steps=steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            tokens_per_s=tokens_per_s,
            rss_mb=rss_mb,
        )

    async def close(self) -> None:
        """End all that runs."""
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        for entry in list(self._entries.values()):
            self.abort(entry.request.request_id)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._resources.aclose()


def _packed(vector: list[float] | None, *, normalize: bool) -> bytes | None:
    if vector is None:
        return None
    length = sum(each * each for each in vector) ** 0.5 if normalize else 1.0
    return struct.pack(f"<{len(vector)}f", *(each / (length or 1.0) for each in vector))

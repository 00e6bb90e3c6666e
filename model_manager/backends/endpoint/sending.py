"""One request from its place in the queue to its answer: tries, waits, and whose fault it is when no try succeeds.

A request that has used its tries fails alone if its server's health route answers: then the server lives and this
request is what it cannot do. A server that millrace started is asked at its own health route too: an engine that died
in it answers other routes. For the same reason a circuit that opens closes again if the health route answers, unless
the server says that it can answer no row (502, 503, 504): then it is open for a second only. If the health route is
silent, the request waits with all others for a server, until none has answered anything for `down_timeout`; then the
job fails and no row is lost to it. "Busy" is an answer, and the pause that it asks for is no silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from ...wire.endpoint_options import EndpointOptions
from ...wire.errors import MillraceError, ModelLoadFailed, ServerFailed
from ...wire.request import Request
from .balancer import Balancer, Reservation, Server
from .connections import Connections
from .dialects import Dialect, Garbled, ServerAnswer, plausible, sound
from .health_route import HealthRoute
from .hiding import without_key
from .judging import Reply, TryFailed, is_healthy, judge
from .limits import RateLimit, UsedPart
from .retrying import LEAST_BUSY, backoff
from .streams import AnswerStream, StreamDialect, TellKept, whole

log = logging.getLogger(__name__)

_CHARACTERS_PER_TOKEN = 4
_WARN_EVERY = 60.0
"""Seconds, at least, between two warnings about one server's failed tries."""


class Sender:
    """Sends requests; only for the thread of its event loop."""

    def __init__(
        self,
        options: EndpointOptions,
        dialect: Dialect,
        connections: Connections,
        balancer: Balancer,
        clock: Callable[[], float],
        health: HealthRoute | None = None,
    ) -> None:
        """`clock` in seconds. `health`: of the only server, if millrace started it."""
        self._options = options
        self._dialect = dialect
        self._connections = connections
        self._balancer = balancer
        self._health = health
        self._clock = clock
        self._requests = RateLimit(options.requests_per_minute, clock)
        self._tokens = RateLimit(options.tokens_per_minute, clock)
        self._used = UsedPart()
        self._good_at = clock()

    def wakes(self) -> None:
        """Requests come after a time without any: only from now on is silence a bad sign."""
        self._good_sign()

    async def send(self, request: Request, tell: TellKept) -> ServerAnswer:
        """The answer; raises RequestError if there is none for this request, ModelError if there is none for any.

        `tell` gets the tokens that are kept for another try as they come.
        """
        work = _work(request)
        tries, failures, retried, was_out = 0, 0, list[float](), False
        asked: set[Server] = set()
        while True:
            await self._requests.take(1)
            taken = work * self._used.part
            await self._tokens.take(taken)
            reservation = await self._balancer.enter(work, avoided=asked)
            began = self._clock()
            asked.add(reservation.server)
            stream = self._stream(request, tell)
            try:
                answer = await self._try(request, stream, reservation)
            except TryFailed as failure:
                request = request if stream is None else stream.rest()
                if failure.is_busy:
                    self._tokens.add(taken)
                await self._failed(reservation.server, failure, was_test=reservation.is_test)
                await self._check_hope(reservation.server, began, failure)
                tries, failures = tries + 1, failures + (not failure.is_busy)
                retried.append(self._clock())
                if failures > self._options.retries and await self._lives(reservation.server):
                    if was_out or not failure.is_outage:
                        failed = "1 try" if failures == 1 else f"{failures} tries"
                        raise ServerFailed(f"no answer in {failed}; the last: {failure}") from None
                    was_out = True  # it was still starting, and lives by now
                if not (failure.is_busy and self._balancer.has_ready(besides=asked)):
                    await asyncio.sleep(backoff(tries, least=LEAST_BUSY if failure.is_busy else 0.0))
                    asked = {reservation.server}
            else:
                self._settle(work, taken, answer.num_tokens + answer.prompt_tokens)
                return replace(answer, retried=tuple(retried)) if retried else answer

    def _settle(self, work: float, taken: float, used: int) -> None:
        """Correct what was taken for a request by what its server counted, if it counts."""
        if used:
            self._tokens.add(taken - used)
            self._used.learn(work, used)

    def _stream(self, request: Request, tell: TellKept) -> AnswerStream | None:
        if isinstance(self._dialect, StreamDialect) and self._dialect.streams(request):
            return AnswerStream(request, self._dialect, tell)
        return None

    async def _try(self, request: Request, stream: AnswerStream | None, reservation: Reservation) -> ServerAnswer:
        """One try; the server's circuit learns of an answer."""
        server = reservation.server
        try:
            call, take = self._dialect.call(request), None if stream is None else stream.take
            reply = await self._connections.send(self._dialect.base(server.url), call, take)
            judge(reply, server.url, self._options, was_there=self._dialect.needs_probes)
            answer = sound(whole(self._read(request, stream, reply), request))
        except Garbled as error:
            raise TryFailed(f"{server.url}: {without_key(str(error), self._options.key())}") from None
        except MillraceError:
            self._answered(server)  # it refuses this request, so it works
            raise
        except asyncio.CancelledError:
            server.circuit.forgotten(was_test=reservation.is_test)
            raise
        finally:
            self._balancer.leave(reservation)
        self._answered(server)
        counted = plausible(answer, request)
        if counted != answer and not server.counts_oddly:
            server.counts_oddly = True
            log.warning(
                "%s counts tokens that cannot be (%d of a prompt, %d of an answer): such counts are left out",
                *(server.url, answer.prompt_tokens, answer.num_tokens),
            )
        return counted

    def _read(self, request: Request, stream: AnswerStream | None, reply: Reply) -> ServerAnswer:
        if stream is not None and not reply.body:
            return stream.answer()
        return self._dialect.read(request, reply.body, reply.headers)

    def _answered(self, server: Server) -> None:
        if not server.circuit.is_closed:
            log.info("%s answers again", server.url)
        server.circuit.succeeded()
        self._good_sign()

    def _good_sign(self, pause: float = 0.0) -> None:
        """A server has answered something; it may have asked for a pause, which is no silence."""
        self._good_at = max(self._good_at, self._clock() + pause)

    async def _failed(self, server: Server, failure: TryFailed, *, was_test: bool) -> None:
        """What a failed try tells of its server."""
        now = self._clock()
        if failure.is_busy:
            pause = failure.pause or 0.0
            server.paused_until = max(server.paused_until, now + pause)  # the balancer keeps requests away
            server.circuit.forgotten(was_test=was_test)
            self._good_sign(pause)
        elif server.circuit.failed(now, was_test=was_test):
            await self._opened(server, failure)
        if now - server.warned_at >= _WARN_EVERY:
            server.warned_at = now
            asked = "" if failure.pause is None else f" after {failure.pause:g} s, as the server asks"
            log.warning("a request is sent again%s: %s", asked, failure)

    async def _opened(self, server: Server, failure: TryFailed) -> None:
        """The circuit has opened: it stays open if the server fails, and not some rows alone."""
        lives = await self._lives(server)
        if lives and not failure.is_outage:
            server.circuit.succeeded()
            self._balancer.wake()
            return
        if lives:
            server.circuit.eased(self._clock())
        server.warned_at = self._clock()
        log.warning("%s gets no requests for a while: %s", server.url, failure)

    async def _check_hope(self, server: Server, began: float, failure: TryFailed) -> None:
        """Raises ModelLoadFailed if a try that began so long after the last good sign failed too."""
        silent = began - self._good_at
        if silent > self._options.down_timeout and not await self._lives(server):
            raise ModelLoadFailed(f"no server has answered a request for {silent:.0f} s; the last try: {failure}")

    async def _lives(self, server: Server) -> bool:
        """Whether its health route answers, which is a good sign."""
        lives = await self._answers(server) and (self._health is None or await self._health.is_healthy())
        if lives:
            self._good_sign()
        return lives

    async def _answers(self, server: Server) -> bool:
        """Whether it answers what its dialect has for a health route."""
        call = self._dialect.probes[0]
        try:
            reply = await self._connections.probe(self._dialect.base(server.url), call)
            if self._dialect.needs_probes:
                judge(reply, server.url, self._options)
                self._dialect.learn(call.route, reply.body)
            return is_healthy(reply.status)
        except TryFailed as failure:
            return failure.is_busy
        except (Garbled, MillraceError):
            return False


def _work(request: Request) -> float:
    """Tokens that a request may come to, about: what its characters and `max_tokens` say."""
    characters = len(request.text) + sum(len(str(each.get("content", ""))) for each in request.messages)
    most = request.params.max_tokens if request.task == "generate" else 0
    return characters / _CHARACTERS_PER_TOKEN + most

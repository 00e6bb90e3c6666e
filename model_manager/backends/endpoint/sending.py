"""One request from its place in the queue to its answer: tries, waits, and whose fault it is when no try succeeds.

A request that has used its tries fails alone if its server's health route answers: then the server lives and this
request is what it cannot do. Otherwise the request waits with all others for a server, until none has answered anything
for `down_timeout`; then the job fails and no row is lost to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ...wire.endpoint_options import EndpointOptions
from ...wire.errors import MillraceError, ModelLoadFailed, ServerFailed
from ...wire.messages import Request
from .balancer import Balancer, Place, Server
from .connections import Connections
from .dialects import Answer, Call, Dialect, Garbled
from .judging import TryFailed, judge
from .limits import RateLimit
from .retrying import LEAST_BUSY, backoff

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
    ) -> None:
        """`clock` in seconds."""
        self._options = options
        self._dialect = dialect
        self._connections = connections
        self._balancer = balancer
        self._clock = clock
        self._requests = RateLimit(options.requests_per_minute, clock)
        self._tokens = RateLimit(options.tokens_per_minute, clock)
        self._good_at = clock()

    def wakes(self) -> None:
        """Requests come after a time without any: only from now on is silence a bad sign."""
        self._good_at = self._clock()

    async def send(self, request: Request) -> Answer:
        """The answer; raises RequestError if there is none for this request, ModelError if there is none for any."""
        call, work = self._dialect.call(request), _work(request)
        tries, failures = 0, 0
        asked: set[Server] = set()
        while True:
            await self._requests.take(1)
            await self._tokens.take(work)
            place = await self._balancer.enter(work, avoided=asked)
            began = self._clock()
            asked.add(place.server)
            try:
                answer = await self._try(request, call, place)
            except TryFailed as failure:
                self._check_hope(began, failure)
                tries, failures = tries + 1, failures + (not failure.is_busy)
                if failures > self._options.retries and await self._lives(place.server):
                    raise ServerFailed(f"no answer in {failures} tries; the last: {failure}") from None
                if not (failure.is_busy and self._balancer.has_ready(besides=asked)):
                    await asyncio.sleep(backoff(tries, least=LEAST_BUSY if failure.is_busy else 0.0))
                    asked = {place.server}
            else:
                if answer.num_tokens or answer.prompt_tokens:
                    self._tokens.add(work - answer.num_tokens - answer.prompt_tokens)
                return answer

    async def _try(self, request: Request, call: Call, place: Place) -> Answer:
        """One try; the server's circuit learns how it went."""
        server = place.server
        try:
            reply = await self._connections.send(self._dialect.base(server.url), call)
            judge(reply, server.url, self._options.key_env, was_there=self._dialect.needs_probes)
            answer = self._dialect.read(request, reply.body, reply.headers)
        except TryFailed as failure:
            self._failed(place, failure)
            raise
        except Garbled as error:
            garbled = TryFailed(f"{server.url}: {error}")
            self._failed(place, garbled)
            raise garbled from None
        except MillraceError:
            self._answered(server)  # it refuses this request, so it works
            raise
        except asyncio.CancelledError:
            server.circuit.forgotten(was_test=place.is_test)
            raise
        finally:
            self._balancer.leave(place)
        self._answered(server)
        return answer

    def _answered(self, server: Server) -> None:
        if not server.circuit.is_closed:
            log.info("%s answers again", server.url)
        server.circuit.succeeded()
        self._good_at = self._clock()

    def _failed(self, place: Place, failure: TryFailed) -> None:
        now, server = self._clock(), place.server
        if failure.pause is not None:
            server.paused_until = max(server.paused_until, now + failure.pause)  # the balancer keeps requests away
        if failure.is_busy:
            server.circuit.forgotten(was_test=place.is_test)
        elif server.circuit.failed(now, was_test=place.is_test):
            server.warned_at = now
            log.warning("%s gets no requests for a while: %s", server.url, failure)
        if now - server.warned_at >= _WARN_EVERY:
            server.warned_at = now
            asked = "" if failure.pause is None else f" after {failure.pause:g} s, as the server asks"
            log.warning("a request is sent again%s: %s", asked, failure)

    def _check_hope(self, began: float, failure: TryFailed) -> None:
        """Raises ModelLoadFailed if a try that began so long after the last good sign failed too."""
        silent = began - self._good_at
        if silent > self._options.down_timeout:
            raise ModelLoadFailed(f"no server has answered a request for {silent:.0f} s; the last try: {failure}")

    async def _lives(self, server: Server) -> bool:
        call = self._dialect.probes[0]
        try:
            reply = await self._connections.probe(self._dialect.base(server.url), call)
            if self._dialect.needs_probes:
                judge(reply, server.url, self._options.key_env)
                self._dialect.learn(call.route, reply.body)
        except (TryFailed, Garbled, MillraceError):
            return False
        return reply.status < 500


def _work(request: Request) -> float:
    """Tokens that a request may come to, about: what its characters and `max_tokens` say."""
    characters = len(request.text) + sum(len(str(each.get("content", ""))) for each in request.messages)
    most = request.params.max_tokens if request.task == "generate" else 0
    return characters / _CHARACTERS_PER_TOKEN + most

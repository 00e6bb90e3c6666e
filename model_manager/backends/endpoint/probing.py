"""Probes each server once when the engine starts: a wrong key or address ends the job in one sentence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ...wire.endpoint_options import EndpointOptions
from ...wire.errors import InvalidRequest, ModelLoadFailed, ModelNotFound
from .balancer import Balancer, Server
from .circuit import FAILURES
from .connections import Connections
from .dialects import Call, Dialect, Garbled
from .hiding import without_key
from .judging import TryFailed, judge
from .retrying import backoff

log = logging.getLogger(__name__)


async def probe(
    options: EndpointOptions,
    dialect: Dialect,
    connections: Connections,
    balancer: Balancer,
    clock: Callable[[], float],
) -> None:
    """Returns if a server lives; the circuit of one that does not is open.

    Raises ModelLoadFailed if none does, after as many tries as a request has, or if one refuses the key.
    """
    probed = (_probed(server, options, dialect, connections, clock) for server in balancer.servers)
    reasons = dict(zip(options.addresses, await asyncio.gather(*probed), strict=True))
    down = {url: reason for url, reason in reasons.items() if reason}
    if len(down) == len(reasons):
        raise ModelLoadFailed(f"no server lives: {'; '.join(down.values())}")
    for server in balancer.servers:
        if server.url in down:
            log.warning("others go on without %s", down[server.url])
            for _ in range(FAILURES):
                server.circuit.failed(clock(), was_test=False)


async def _probed(
    server: Server, options: EndpointOptions, dialect: Dialect, connections: Connections, clock: Callable[[], float]
) -> str:
    """Why the server does not live; empty if it does, if only busy."""
    failures = 0
    while True:
        try:
            for call in dialect.probes:
                await _ask(server, call, options, dialect, connections)
            return ""
        except TryFailed as failure:
            if failure.is_busy and not dialect.needs_probes:
                server.paused_until = clock() + (failure.pause or 0.0)
                return ""
            failures += 1
            if failures > options.retries:
                return str(failure)
            await asyncio.sleep(max(backoff(failures), failure.pause or 0.0))


async def _ask(
    server: Server, call: Call, options: EndpointOptions, dialect: Dialect, connections: Connections
) -> None:
    reply = await connections.probe(dialect.base(server.url), call)
    try:
        judge(reply, server.url, options)
        dialect.learn(call.route, reply.body)
    except Garbled as error:
        said = without_key(str(error), options.key())
        if dialect.needs_probes:
            raise TryFailed(f"{server.url}: {said}") from None
        log.warning("%s: the route %s: %s", server.url, call.route, said)
    except (ModelNotFound, InvalidRequest) as error:
        if dialect.needs_probes:
            # Triton answers 400 for a model that it is still loading, as for one that it does not have.
            if isinstance(error, InvalidRequest):
                raise TryFailed(str(error)) from None
            raise
        # Many servers lack this route; if the address is wrong, the first request says so.
        log.warning("%s: the route %s tells nothing: %s", server.url, call.route, error)

"""Clients of an OpenAI-compatible server: some that ask again when they are answered, or many that come at random.

Knows HTTP and the form of a completion; not which server it is.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp
import msgspec

_TRIES = 3
"""Connections for one request."""


@dataclass
class Load:
    """What the clients saw in one round."""

    seconds: float = 0.0
    tokens: int = 0
    waits: list[float] = field(default_factory=list)
    """Seconds from each request to its whole answer."""
    first_tokens: list[float] = field(default_factory=list)
    """Seconds from each streamed request to the first part of its answer that has text."""
    retries: int = 0
    """Requests sent again over another connection; `waits` hold that time too."""
    later_tokens: list[float] = field(default_factory=list)
    """Seconds a token of each streamed answer, after its first part."""

    @property
    def requests_per_s(self) -> float:
        """Requests answered a second."""
        return len(self.waits) / self.seconds


def ask(
    url: str, model: str, prompts: Iterator[str], *, clients: int, seconds: float, max_tokens: int, stream: bool
) -> Load:
    """One round: no request begins after `seconds`, and all that have begun are waited for."""
    return asyncio.run(_ask(url, model, prompts, clients, seconds, max_tokens, stream))


async def _ask(
    url: str, model: str, prompts: Iterator[str], clients: int, seconds: float, max_tokens: int, stream: bool
) -> Load:
    load = Load()
    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:
        began = time.perf_counter()

        async def client() -> None:
            while time.perf_counter() - began < seconds:
                body = {"model": model, "prompt": next(prompts), "max_tokens": max_tokens, "temperature": 0}
                await _request(session, f"{url}/v1/completions", body | {"ignore_eos": True}, load, stream)

        await asyncio.gather(*(client() for _ in range(clients)))
        load.seconds = time.perf_counter() - began
    return load


def arrive(
    url: str,
    model: str,
    prompts: Iterator[str],
    *,
    rate: float,
    seconds: float,
    max_tokens: int,
    stream: bool,
    seed: int,
) -> Load:
    """One round of requests that come at random (Poisson), `rate` a second, however many are unanswered."""
    body = {"model": model, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return asyncio.run(_arrive(f"{url}/v1/completions", body, prompts, rate, seconds, stream, random.Random(seed)))


async def _arrive(
    url: str,
    body: dict[str, object],
    prompts: Iterator[str],
    rate: float,
    seconds: float,
    stream: bool,
    chance: random.Random,
) -> Load:
    load = Load()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:
        began = time.perf_counter()
        due, requests = chance.expovariate(rate), []
        while due < seconds:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            asked = _request(session, url, body | {"prompt": next(prompts)}, load, stream)
            requests.append(asyncio.ensure_future(asked))
            due += chance.expovariate(rate)
        await asyncio.gather(*requests)
        load.seconds = time.perf_counter() - began
    return load


async def _request(session: aiohttp.ClientSession, url: str, body: dict[str, object], load: Load, stream: bool) -> None:
    began = time.perf_counter()
    for _ in range(_TRIES):
        try:
            tokens = await _answered(session, url, body, load, began, stream)
        except aiohttp.ClientConnectionError:  # a server may close a connection that it has kept, as llama.cpp's does
            load.retries += 1
            continue
        load.waits.append(time.perf_counter() - began)
        load.tokens += tokens
        return
    raise SystemExit(f"{url}: {_TRIES} connections ended without an answer")


async def _answered(
    session: aiohttp.ClientSession, url: str, body: dict[str, object], load: Load, began: float, stream: bool
) -> int:
    """The tokens of the whole answer."""
    if stream:
        asked = body | {"stream": True, "stream_options": {"include_usage": True}}
        async with session.post(url, json=asked) as response:
            return await _read(response, began, load)
    async with session.post(url, json=body) as response:
        answer = msgspec.json.decode(await response.read())
        if response.status != 200:
            raise SystemExit(f"{url} answered {response.status}: {answer}")
    return int(answer["usage"]["completion_tokens"])


async def _read(response: aiohttp.ClientResponse, began: float, load: Load) -> int:
    """Read a stream to its end; returns its tokens, as its usage says."""
    tokens, first, last = 0, 0.0, 0.0
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        event = msgspec.json.decode(line[6:])
        if event["choices"] and event["choices"][0]["text"]:
            last = time.perf_counter()
            first = first or last
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    if first:
        load.first_tokens.append(first - began)
        load.later_tokens.append((last - first) / max(1, tokens - 1))
    return tokens


def prompts_of(words: list[str], length: int) -> Iterator[str]:
    """Prompts of so many tokens; no two begin alike."""
    for number in itertools.count():
        yield "".join(words[(number * 7919 + place * 104729) % len(words)] for place in range(length))

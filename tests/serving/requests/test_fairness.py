"""A client that asks for much at once does not make another one wait behind all of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.servers import Server, fake_server

MANY, SHORT = 60, 10
"""Requests of the client that asks for much, and how many of them are short: the first ones."""
ASKED: dict[str, Any] = {"prompt": "a", "max_tokens": 20, "temperature": 0}
LONG = ASKED | {"max_tokens": 600}
FLAGS = ("--max_num_seqs", "2")
"""Few at a time, so that most wait in the server."""


@contextlib.asynccontextmanager
async def asking(server: Server, address: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client from an address of this machine, with a key."""
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits(max_connections=MANY))
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, transport=transport, headers=headers, timeout=120) as client:
        yield client


async def others_answered_first(server: Server, one: tuple[str, str], other: tuple[str, str]) -> int:
    """How many requests of the one client were answered when the single request of the other was. All of them take
    more than a minute; the other's, after a few short ones, waits for very little of it.
    """
    async with asking(server, *one) as greedy, asking(server, *other) as modest:
        bodies = [ASKED] * SHORT + [LONG] * (MANY - SHORT)
        asked = [asyncio.create_task(greedy.post("/v1/completions", json=body)) for body in bodies]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        answer = await modest.post("/v1/completions", json=ASKED)
        assert answer.status_code == 200
        count = sum(task.done() for task in asked)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        return count


@pytest.mark.parametrize(
    ("one", "other"),
    [(("127.0.0.1", "first"), ("127.0.0.1", "second")), (("127.0.0.1", "first"), ("127.0.0.2", "second"))],
    ids=["one address", "two addresses"],
)
def test_keys_take_turns(tmp_path: Path, one: tuple[str, str], other: tuple[str, str]) -> None:
    (tmp_path / "keys").write_text("first\nsecond\n")
    with fake_server(tmp_path / "rt", *FLAGS, "--api_key_file", str(tmp_path / "keys"), step=0.005) as server:
        assert asyncio.run(others_answered_first(server, one, other)) < MANY // 2


def test_addresses_take_turns_where_there_are_no_keys(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", *FLAGS, step=0.005) as server:
        count = asyncio.run(others_answered_first(server, ("127.0.0.1", "any"), ("127.0.0.2", "any")))
        assert count < MANY // 2


def test_a_client_that_takes_all_places_leaves_one_to_another(tmp_path: Path) -> None:
    async def ask(server: Server) -> tuple[int, int]:
        async with (
            asking(server, "127.0.0.1", "any") as greedy,
            asking(server, "127.0.0.2", "any") as modest,
            greedy.stream("POST", "/v1/completions", json=ASKED | {"max_tokens": 1000, "stream": True}) as stream,
        ):
            parts = stream.aiter_bytes()
            await anext(parts)
            refused = await greedy.post("/v1/completions", json=ASKED)
            return refused.status_code, (await modest.post("/v1/completions", json=ASKED)).status_code

    with fake_server(tmp_path / "rt", "--max_inflight", "1", step=0.05) as server:
        assert asyncio.run(ask(server)) == (429, 200)

"""The parts of a request that are done in the event loop, and those beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from millrace.serving.http.http_errors import HttpError
from millrace.serving.http.reading import BodyMemory
from millrace.serving.openai.bodies import decoded
from millrace.serving.openai.body_size import MOST_LISTS, MOST_VALUES
from millrace.serving.openai.endpoints import Endpoint
from millrace.serving.requests.service import Service
from millrace.serving.settings import ServeConfig


def made_beside(body: dict[str, Any]) -> bool:
    """Whether what a body asks is made on another thread than the loop's."""
    beside: list[object] = []

    async def run_beside(make: Callable[[], Any], client: object) -> Any:
        beside.append(client)
        return make()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": msgspec.json.encode(body)}

    async def run() -> None:
        service = cast(Service, SimpleNamespace(settings=ServeConfig(), beside=run_beside))
        with BodyMemory(2**30).body("client") as incoming:
            await incoming.read({"headers": []}, receive, 2**20, 60)
            endpoint = Endpoint(service, "/v1/completions")
            assert await endpoint.made(incoming, lambda fields, _: fields["prompt"]) == body["prompt"]

    asyncio.run(run())
    return bool(beside)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", False),
        (["a"] * 16, False),
        ([5] * 400, False),
        (["a"] * 200, True),
        ([[5]] * 200, True),
        ("a" * 2000, True),
    ],
    ids=["text", "few texts", "token ids", "many short texts", "many lists of ids", "long text"],
)
def test_the_loop_makes_what_is_little_work_however_short_a_body_is(prompt: Any, expected: bool) -> None:
    assert made_beside({"prompt": prompt}) is expected


@pytest.mark.parametrize(
    "body",
    [b'{"prompt": [%b1]}' % (b"1," * MOST_VALUES), b'{"prompt": [%b1]}' % (b"[]," * MOST_LISTS)],
    ids=["numbers", "lists"],
)
def test_a_body_of_more_values_than_any_request_has_is_refused_before_it_is_read(body: bytes) -> None:
    with pytest.raises(HttpError, match="values") as refused:
        decoded(body)
    assert refused.value.status == 413


def test_commas_and_brackets_in_a_text_are_no_values() -> None:
    text = '\\",[{' * MOST_VALUES
    assert decoded(msgspec.json.encode({"prompt": text})) == {"prompt": text}

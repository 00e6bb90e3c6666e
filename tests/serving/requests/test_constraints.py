"""Constraints that cost much, and those whose answers max_tokens cuts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pydantic
import pytest

from tests.processes import is_gone
from tests.serving.servers import MODEL, Server, fake_server
from tests.waiting import eventually

MANY = 200
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}
LONG_TEXT = {"type": "object", "properties": {"a": {"type": "string", "minLength": 200}}, "required": ["a"]}
HELLO: Any = [{"role": "user", "content": "Hello"}]
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": LONG_TEXT}}
HUGE: list[dict[str, Any]] = [
    {"guided_regex": "a{1000000000}"},
    {"guided_regex": "(a{1000}){1000}"},
    {"guided_json": {"type": "string", "pattern": "^a{1000000000}$"}},
    {"guided_grammar": "start: /a{1000000000}/"},
    {"guided_regex": "b?a{200000}"},
    {"guided_choice": ["x" * 20_000, "y"]},
    {"guided_json": {"const": "x" * 20_000}},
    {"guided_grammar": 'start: "a"? b{20000}\nb: "b"'},
]


class Answer(pydantic.BaseModel):
    """A typed answer."""

    a: str


@pytest.mark.parametrize("extra", HUGE)
def test_a_huge_constraint_is_refused_and_costs_others_nothing(server: Server, extra: dict[str, Any]) -> None:
    answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 5} | extra)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(extra))


@pytest.mark.parametrize("schema", [{"type": "string", "minLength": 10**9}, {"type": "array", "minItems": 10**7}])
def test_a_schema_that_no_answer_can_meet_costs_nothing_and_is_cut(server: Server, schema: dict[str, Any]) -> None:
    answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 5, "guided_json": schema})
    assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_a_client_with_many_constraints_that_take_long_waits_for_them_alone(server: Server) -> None:
    """One of them is compiled at a time; another client's is compiled meanwhile."""
    bodies = ({"prompt": "a", "guided_regex": f"b?(a{{1000}}){{9}}c{{{number}}}"} for number in itertools.count())

    async def ask() -> None:
        other = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=MANY + 1)) as one,
            httpx.AsyncClient(base_url=server.url, timeout=120, transport=other) as two,
        ):
            for _ in range(20):  # the second process is started when two clients ask at once
                if len(compiling(server)) < 2:
                    await asyncio.gather(*(each.post("/v1/completions", json=next(bodies)) for each in (one, two)))
            assert len(compiling(server)) == 2
            asked = [asyncio.create_task(one.post("/v1/completions", json=next(bodies))) for _ in range(MANY)]
            await one.get("/health")
            modest = {"prompt": "a", "guided_regex": "[ab]{3}", "max_tokens": 5}
            answer = await two.post("/v1/completions", json=modest)
            assert answer.status_code == 200
            assert not all(task.done() for task in asked)
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result().status_code for task in done} == {200}
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(ask())


def compiling(server: Server) -> list[psutil.Process]:
    """The processes that compile constraints."""
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "constraint_child" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_the_processes_that_compile_are_replaced_and_end_with_the_server(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt") as server:
        assert server.post("/v1/completions", {"prompt": "a", "guided_regex": "[ab]{4}"}).status_code == 200
        for process in compiling(server):
            process.kill()
        assert server.post("/v1/completions", {"prompt": "a", "guided_regex": "[ab]{5}"}).status_code == 200
        left = compiling(server)
        assert left
        server.process.kill()
        eventually(lambda: all(map(is_gone, left)))


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_is_the_text_so_far(server: Server, stream: bool) -> None:
    extra = {"guided_json": LONG_TEXT}
    made: Any = server.client().completions.create(prompt="a", max_tokens=12, stream=stream, extra_body=extra, **GREEDY)
    parts = list(made) if stream else [made]
    text = "".join(part.choices[0].text for part in parts)
    assert parts[-1].choices[0].finish_reason == "length"
    assert text.startswith("{")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    longer = server.client().completions.create(prompt="a", max_tokens=24, extra_body=extra, **GREEDY).choices[0].text
    assert longer.startswith(text), "no other ending has replaced what came"


def test_a_stream_of_a_constrained_answer_comes_as_it_is_generated(slow_server: Server) -> None:
    asked: Any = {"prompt": "a", "stream": True, "max_tokens": 20, "extra_body": {"guided_regex": "[ab]{40}"}}
    texts = [part.choices[0].text for part in slow_server.client().completions.create(**asked, **GREEDY)]
    assert len(list(filter(None, texts))) > 5
    assert max(map(len, texts)) < len("".join(texts)) / 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_call_that_is_cut_has_its_arguments_so_far(server: Server, choice: Any, stream: bool) -> None:
    asked: Any = {"messages": HELLO, "tools": [TOOL], "tool_choice": choice, "max_tokens": 40, "stream": stream}
    made: Any = server.client().chat.completions.create(**asked, **GREEDY)
    if stream:
        parts = list(made)
        calls = [part.choices[0].delta.tool_calls for part in parts if part.choices[0].delta.tool_calls]
        arguments = "".join(each[0].function.arguments for each in calls)
        reason = parts[-1].choices[0].finish_reason
    else:
        arguments = made.choices[0].message.tool_calls[0].function.arguments
        reason = made.choices[0].finish_reason
    assert reason == "length"
    assert arguments.startswith("{")


def test_a_typed_answer_that_is_cut_is_openais_own_error(server: Server) -> None:
    asked: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": LONG_TEXT}}
    answer = server.client().chat.completions.create(messages=HELLO, response_format=asked, max_tokens=12, **GREEDY)
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises((openai.LengthFinishReasonError, json.JSONDecodeError)):
        server.client().chat.completions.parse(messages=HELLO, response_format=Answer, max_tokens=6, **GREEDY)

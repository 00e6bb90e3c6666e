"""Servers that speak the documented dialects and fail on demand: real sockets, in a thread of the test's process.

An answer's text is made of the prompt alone, so a test knows what each row must get. What a server does with a request
is what `behaves` returns for it: None for an answer, a status, or the name of a fault.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

INPUTS = {
    "text_input": "BYTES",
    "max_tokens": "INT32",
    "temperature": "FP32",
    "top_p": "FP32",
    "random_seed": "UINT64",
    "stop_words": "BYTES",
}
Behaviour = Callable[[str, int], Any]
"""Of the prompt and how often it came."""


@dataclass
class StandIn:
    """One server."""

    url: str = ""
    key: str = ""
    """What it wants to be sent, if anything."""
    behaves: Behaviour = lambda _prompt, _tries: None
    seen: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of requests, in order."""
    paths: list[str] = field(default_factory=list)
    tries: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    most_in_flight: int = 0
    about: Any = None
    """Status and headers of what it answers about itself, if not its model."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers of the behaviour "wait" come when it is set."""
    example: dict[str, Any] = field(default_factory=dict)
    """A documented example, whose reply it gives to everything; its model's metadata to every GET."""

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=64 * 2**20)
        if self.example:
            app.router.add_route("*", "/{path:.*}", self._replay)
            return app
        for path in ("/v1/models", "/health", "/info", "/props", "/v2/models/m/ready", "/v2/models/m"):
            app.router.add_get(path, self._about)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/generate", "/completion"):
            app.router.add_post(path, self._work)
        for path in ("/v2/models/m/infer", "/v2/models/m/generate"):
            app.router.add_post(path, self._work)
        return app

    async def _replay(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(self.example.get("metadata", {"object": "list", "data": []}))
        self.seen.append(await request.json())
        self.paths.append(request.path)
        return web.json_response(self.example["reply"], headers=self.example.get("headers", {}))

    async def _about(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return self._refused(request)
        if self.about is not None:
            status, headers = self.about
            return web.json_response({}, status=status, headers=headers)
        if request.path == "/v2/models/m":
            inputs = [{"name": name, "datatype": kind, "shape": [-1, 1]} for name, kind in INPUTS.items()]
            outputs = [{"name": "text_output", "datatype": "BYTES", "shape": [-1, -1]}]
            return web.json_response({"name": "m", "platform": "ensemble", "inputs": inputs, "outputs": outputs})
        cards = [{"id": "m", "object": "model", "max_model_len": 2048}]
        return web.json_response({"object": "list", "data": cards, "max_total_tokens": 4096})

    def _refused(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        return web.json_response({"error": {"message": f"Incorrect API key provided: {given}"}}, status=401)

    async def _work(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return self._refused(request)
        fields = await request.json()
        prompt = prompt_of(fields)
        self.seen.append(fields)
        self.paths.append(request.path)
        self.tries[prompt] = self.tries.get(prompt, 0) + 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._behave(request, fields, prompt, self.behaves(prompt, self.tries[prompt]))
        finally:
            self.in_flight -= 1

    async def _behave(self, request: web.Request, fields: Any, prompt: str, what: Any) -> web.StreamResponse:
        reply = answer(request.path, fields, prompt)
        body = json.dumps(reply).encode()
        match what:
            case dict() as changed:
                return web.json_response({**reply, **changed})
            case None:
                return web.Response(body=body, content_type="application/json", headers={"x-prompt-tokens": "3"})
            case "wait":
                await self.release.wait()
                return web.Response(body=body, content_type="application/json")
            case "plain text":
                return web.Response(body=body, content_type="text/plain")
            case "page":
                return web.Response(text="<html>Welcome to the proxy</html>", content_type="text/html")
            case "broken":
                return web.Response(body=body[: len(body) // 2], content_type="application/json")
            case "empty":
                return web.json_response({"choices": [], "data": [], "outputs": []})
            case "binary":
                return web.Response(body=b"\xff\xfe\x00" * 40, content_type="application/json")
            case ("pieces", most):
                return await self._stream(request, fields, most)
            case "hang up":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case "hang up in the body":
                response = web.StreamResponse(headers={"Content-Length": str(len(body))})
                await response.prepare(request)
                await response.write(body[: len(body) // 2])
                assert request.transport is not None
                request.transport.abort()
                return response
            case (int() as status, bytes() as garbage):
                return web.Response(body=garbage, status=status, content_type="application/json")
            case (int() as status, dict() as headers):
                return web.json_response({"error": {"message": f"no {prompt}"}}, status=status, headers=headers)
            case _:
                return web.json_response({"error": {"message": f"no {prompt}"}}, status=what)

    async def _stream(self, request: web.Request, fields: Any, most: int) -> web.StreamResponse:
        """The answer in pieces; from the second try of a prompt on whole, at the first one `most` pieces: then it waits
        for its release, and hangs up.
        """
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events, prompt = pieces(request.path, fields), prompt_of(fields)
        breaks = self.tries[prompt] == 1
        for event in events[:most] if breaks else events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if breaks:
            await self.release.wait()
            assert request.transport is not None
            request.transport.abort()
        else:
            await response.write(b"data: [DONE]\n\n")
        return response


def prompt_of(fields: dict[str, Any]) -> str:
    """The prompt of a body in any dialect."""
    if isinstance(fields.get("prompt"), list):
        return given(fields)[0]
    if "messages" in fields:
        return str(fields["messages"][-1]["content"])
    if isinstance(tensors := fields.get("inputs"), list):
        return str(next(each["data"][0] for each in tensors if each["name"] == "text_input"))
    return str(next(fields[name] for name in ("prompt", "inputs", "input", "text_input") if name in fields))


def given(fields: dict[str, Any]) -> tuple[str, str]:
    """A prompt, and the beginning of its answer that stands behind it. A token is a character."""
    parts = fields["prompt"]
    text = "".join(each if isinstance(each, str) else chr(each) for each in parts)
    prompt, begins, answered = text.partition("<")
    return prompt, begins + answered


def text_for(prompt: str) -> str:
    """The answer to a prompt."""
    return f"<{prompt}>"


def pieces(path: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of the rest of an answer, in vLLM's dialect or llama.cpp's."""
    prompt, answered = given(fields) if isinstance(fields.get("prompt"), list) else (prompt_of(fields), "")
    rest = [*text_for(prompt)[len(answered) :], ""]
    counts = {"prompt_tokens": len(prompt + answered), "completion_tokens": len(rest)}
    if path == "/completion":
        return [
            {"content": each, "tokens": [ord(each)], "stop": False, "tokens_predicted": number + 1}
            if each
            else {"content": "", "tokens": [], "stop": True, "stop_type": "eos", "tokens_predicted": len(rest)}
            | {"tokens_evaluated": counts["prompt_tokens"]}
            for number, each in enumerate(rest)
        ]
    asked = [ord(each) for each in prompt + answered]
    chats, events = path.endswith("chat/completions"), list[dict[str, Any]]()
    for number, each in enumerate(rest):
        told = {"prompt_token_ids": asked} if number == 0 else {}
        choice = {"index": 0, "token_ids": [ord(each or "\0")], "finish_reason": None if each else "stop"}
        said = {"delta": {"content": each}} if chats else {"text": each} | told
        events.append({"choices": [choice | said]} | (told if chats else {}))
    return [*events, {"choices": [], "usage": counts}]


def answer(path: str, fields: dict[str, Any], prompt: str) -> Any:
    """A body in the dialect of the path."""
    text, usage = text_for(prompt), {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    match path:
        case "/v1/chat/completions":
            message = {"role": "assistant", "content": text}
            return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
        case "/v1/completions":
            return {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}], "usage": usage}
        case "/v1/embeddings":
            return {"data": [{"index": 0, "embedding": [3.0, 4.0]}], "usage": {"prompt_tokens": 3}}
        case "/generate":
            stop = fields["parameters"].get("stop", [])
            reason = "stop_sequence" if stop else "eos_token"
            details = {"finish_reason": reason, "generated_tokens": 5, "prefill": [], "tokens": []}
            return {"generated_text": text + "".join(stop[:1]), "details": details}
        case "/completion":
            return {"content": text, "stop": True, "stopped_eos": True, "tokens_predicted": 5, "tokens_evaluated": 3}
        case "/v2/models/m/infer":
            output = {"name": "text_output", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
            return {"model_name": "m", "outputs": [output]}
        case _:
            return {"model_name": "m", "model_version": "1", "text_output": text}


class Servers:
    """Stand-ins in an event loop of their own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runners: dict[str, web.AppRunner] = {}

    def run(self, work: Any) -> Any:
        """Run in their loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, behaves: Behaviour | None = None, *, key: str = "") -> StandIn:
        """One more server."""
        server: StandIn = self.run(self._start(behaves, key))
        return server

    def replay(self, example: dict[str, Any]) -> StandIn:
        """A server that gives a documented example's reply."""
        server: StandIn = self.run(self._serve(StandIn(example=example)))
        return server

    async def _start(self, behaves: Behaviour | None, key: str) -> StandIn:
        server = StandIn(key=key)
        server.behaves = behaves or server.behaves
        return await self._serve(server)

    async def _serve(self, server: StandIn) -> StandIn:
        runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._runners[server.url] = runner
        return server

    @property
    def urls(self) -> set[str]:
        """Addresses of the servers that run."""
        return set(self._runners)

    def stop(self, server: StandIn) -> None:
        """End one: its port refuses connections from now on, and its connections are closed."""
        self.run(self._runners.pop(server.url).cleanup())

    def set(self, server: StandIn) -> None:
        """Let a server's waiting answers go."""
        self._loop.call_soon_threadsafe(server.release.set)

    def close(self) -> None:
        """End all of them."""
        for runner in self._runners.values():
            self.run(runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def serving() -> Iterator[Servers]:
    """Servers, ended at the end."""
    servers = Servers()
    try:
        yield servers
    finally:
        servers.close()

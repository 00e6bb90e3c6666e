"""Pages of other sites in this machine's browser: they neither have a model work nor read what a server says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from millrace.serving.http.browsers import BrowserCheck
from tests.serving.servers import MODEL, Server, fake_server

PROMPT = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1})
PLAIN = {"content-type": "text/plain"}  # a browser sends that to anybody, without CORS
FORM = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "batch"}}


def ask(url: str, headers: dict[str, str]) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", content=PROMPT, headers=PLAIN | headers)


def accepted(server: Server) -> float:
    """Requests that have come as far as the model."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("millrace:http_requests_total{"))


@pytest.mark.parametrize(
    "page",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_another_sites_page_cannot_have_the_model_work_or_a_file_kept(server: Server, page: dict[str, str]) -> None:
    before, files = accepted(server), httpx.get(f"{server.url}/v1/files").json()["data"]
    for answer in (ask(server.url, page), httpx.post(f"{server.url}/v1/files", headers=page, **FORM)):  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_page")
        assert "--cors_origin" in answer.json()["error"]["message"]
    assert accepted(server) == before
    assert httpx.get(f"{server.url}/v1/files").json()["data"] == files


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"]
)
@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/files", "/events", "/metrics", "/health"])
def test_a_site_whose_name_leads_here_reads_nothing(server: Server, name: str, path: str) -> None:
    answer = httpx.get(f"{server.url}{path}", headers={"host": name, "sec-fetch-site": "same-origin"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_page")


def test_the_servers_own_page_and_programs_may_ask(server: Server) -> None:
    port, before = httpx.URL(server.url).port, accepted(server)
    asked: tuple[dict[str, str], ...] = (
        {},
        {"origin": server.url, "sec-fetch-site": "same-origin"},
        {"origin": server.url},
        {"host": f"localhost:{port}", "origin": f"http://localhost:{port}"},
        {"host": "host.docker.internal:8000"},
        {"host": "LOCALHOST"},
        {"host": "[::1]:80"},
    )
    for headers in asked:
        assert ask(server.url, headers).status_code == 200, headers
    assert accepted(server) - before == len(asked)


def test_a_named_origin_may_ask_also_through_a_proxy_that_hands_over_its_name(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--cors_origin", "https://app.example") as server:
        for headers in ({}, {"host": "app.example"}):
            assert ask(server.url, {"origin": "https://app.example", **headers}).status_code == 200
            assert ask(server.url, {"origin": "https://evil.example", **headers}).status_code == 403
        assert ask(server.url, {"host": "evil.example"}).status_code == 403


def test_whoever_has_a_key_is_no_other_sites_page(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key\n")
    with fake_server(tmp_path / "rt", "--api_key_file", str(tmp_path / "keys")) as server:
        proxied = {"host": "api.example", "origin": "https://app.example"}
        assert ask(server.url, proxied).status_code == 401
        assert ask(server.url, proxied | {"authorization": "Bearer key"}).status_code == 200


@pytest.mark.parametrize(
    ("address", "status"), [("127.0.0.1", 403), ("::1", 403), ("fe80::1%eth0", 200), ("10.0.0.5", 200)]
)
def test_any_name_will_do_where_others_are_meant_to_ask(address: str, status: int) -> None:
    sent: list[Message] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "server": (address, 80), "headers": [(b"host", b"gpu-box.example")]}
    asyncio.run(BrowserCheck(app)(scope, None, send))
    assert sent[0]["status"] == status

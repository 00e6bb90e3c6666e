"""`/` and `/events` of a server: figures each second, for those who may have them, and no prompt among them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from millrace.serving.window.page import PATHS
from tests.serving.servers import MODEL, Server, fake_server
from tests.serving.window.feeds import feed
from tests.waiting import eventually

SECRET = "the secret of the prompt"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def test_frames_come_one_after_the_other_and_name_model_and_manager(server: Server) -> None:
    with feed(server.url) as frames:
        first, second = next(frames), next(frames)
    assert first["history"] is not None
    assert "history" not in second
    assert second["figures"]["at"] > first["figures"]["at"]
    figures = second["figures"]
    assert figures["server"] == {"model": MODEL, "version": figures["server"]["version"], "is_ready": True}
    assert [model["model"] for model in figures["status"]["models"]] == [MODEL]


def test_a_request_is_seen_with_its_tokens_and_without_its_text(server: Server) -> None:
    for stream in (False, True):
        body = {"prompt": SECRET, "max_tokens": 3, "ignore_eos": True, "stream": stream, "user": SECRET}
        assert server.post("/v1/completions", body).status_code == 200
    with feed(server.url) as frames:
        text = json.dumps(next(frames))
    assert SECRET not in text
    rows = [row for row in json.loads(text)["figures"]["rows"] if row["of"] == "/v1/completions"]
    assert [(row["generated_tokens"], row["state"]) for row in rows[-2:]] == [(3, "done"), (3, "done")]


@pytest.mark.parametrize("path", PATHS)
def test_the_pages_files_come_with_a_strict_policy_and_name_no_other_server(server: Server, path: str) -> None:
    answer = httpx.get(f"{server.url}{path}")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    addresses = {*re.findall(r"https?://[^\s\"']+", answer.text)} - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|innerHTML|eval\(", answer.text)


def test_only_get_is_taken(server: Server) -> None:
    assert server.post("/events", {}).status_code == 405
    assert httpx.head(f"{server.url}/events", timeout=60).status_code == 200, "it ends: there is no body to wait for"
    assert server.post("/window/page.js", {}).status_code == 405


def test_with_keys_the_page_needs_none_and_the_feed_does(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    with fake_server(tmp_path / "rt", "--api_key_file", str(tmp_path / "keys")) as server:
        assert [httpx.get(f"{server.url}{path}").status_code for path in PATHS] == [200] * len(PATHS)
        assert httpx.get(f"{server.url}/events").status_code == 401
        assert {server.post(path, {"inputs": "a"}).status_code for path in PATHS} == {401}
        assert httpx.get(f"{server.url}/events", headers={"authorization": "Bearer no"}).status_code == 401
        with feed(server.url, authorization="Bearer sesame") as frames:
            assert "sesame" not in json.dumps(next(frames))


def test_viewers_do_not_keep_a_server_from_ending(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--shutdown_timeout", "500") as server, feed(server.url) as frames:
        next(frames)
        server.process.terminate()
        assert len([*frames]) < 100
        assert server.ended() == 0


def test_a_viewer_that_leaves_is_no_error(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt") as server:
        for _ in range(3):
            with feed(server.url) as frames:
                next(frames)
        eventually(lambda: httpx.get(f"{server.url}/health").status_code == 200)
        server.process.terminate()
        assert server.ended() == 0
        assert not [line for line in server.lines if "rror" in line]

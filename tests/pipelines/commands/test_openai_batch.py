"""OpenAI's batch format in, OpenAI's batch format out, with real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.pipelines.cli import dispatch
from tests.json_lines import rows_of

USER = {"role": "user", "content": "hi"}


def request(identity: str, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    content = {"messages": [USER]} if "chat" in url else {"prompt": "hi"}
    return {
        "custom_id": identity,
        "method": "POST",
        "url": url,
        "body": {"model": "gpt", "max_tokens": 3, **content, **body},
    }


ROWS = [
    request("chat", n=2, logprobs=True, top_logprobs=1),
    request("text", "/v1/completions", logprobs=1) | {"note": 7},
    {"id": "plain", "prompt": "hi", "max_tokens": 3},
    request("tools", tools=[{}]),
    request("none") | {"body": None},
    request("long", messages=[{"role": "user", "content": "word " * 9000}]),
]


def rows(folder: Path, pattern: str) -> dict[str, Any]:
    found = rows_of(folder, pattern)
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


@pytest.mark.usefixtures("shared_runtime")
def test_rows_leave_in_the_format_that_they_came_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    flags = ["--input", f"{tmp_path}/b.jsonl", "--output", f"{tmp_path}/o/c", "--linger", "30", "--backend", "fake"]
    apart = ["--dead_letters", f"{tmp_path}/errors/e"]
    assert dispatch(["run", *flags, *apart, "--limit", "5"]) == 0
    done = rows(tmp_path, "o/c-*")
    assert done.keys() == {"chat", "text", "plain"}
    assert done["plain"]["text"]
    assert "response" not in done["plain"]

    chat, text = done["chat"], done["text"]
    assert (chat["custom_id"], chat["error"], chat["response"]["status_code"]) == ("chat", None, 200)
    assert chat["response"]["request_id"].startswith("req_")
    assert "columns" not in chat
    body = chat["response"]["body"]
    assert (body["object"], body["model"]) == ("chat.completion", "millrace-tiny")
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    for choice in body["choices"]:
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] in ("stop", "length")
        shown = choice["logprobs"]["content"]
        assert all(len(each["top_logprobs"]) == 1 and each["logprob"] <= 0 for each in shown)
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0

    assert text["columns"] == {"note": 7}
    body = text["response"]["body"]
    assert body["object"] == "text_completion"
    assert "".join(body["choices"][0]["logprobs"]["tokens"]).startswith(body["choices"][0]["text"])

    error, none = rows(tmp_path, "errors/e-*").values()
    assert (none["custom_id"], none["response"], none["row"]) == ("none", None, ROWS[4])
    assert none["error"] == {"code": "InvalidRequest", "message": "body=null: takes an object"}
    assert (error["custom_id"], error["response"]) == ("tools", None)
    assert error["error"] == {"code": "InvalidRequest", "message": "body.tools is not supported"}
    assert error["row"] == ROWS[3]
    assert "the first: InvalidRequest: body.tools is not supported" in capsys.readouterr().out

    assert dispatch(["run", *flags, *apart, "--resume", "--quiet"]) == 0
    assert rows(tmp_path, "o/c-*") == done
    assert {each["error"]["code"] for each in rows(tmp_path, "errors/e-*").values()} == {
        "InvalidRequest",
        "PromptTooLong",
    }


@pytest.mark.usefixtures("shared_runtime")
def test_tables_have_their_columns_whatever_came_in(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, ROWS[1:4])))
    flags = ["--input", f"{tmp_path}/b.jsonl", "--linger", "30", "--quiet", "--backend", "fake"]
    assert dispatch(["run", *flags, "--output", f"{tmp_path}/c.csv"]) == 0
    (table,) = tmp_path.glob("c-*.csv")
    assert table.read_text().startswith("id,text,finish_reason,")
    assert "plain" in table.read_text()
    (letter,) = rows(tmp_path, "c.dead_letters-*").values()
    assert (letter["id"], letter["reason"]) == ("tools", "body.tools is not supported")

"""guidellm, the load generator, against the served model: each of its requests is answered, and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.model_manager.store import resolve
from tests.serving.clients.conftest import said_by
from tests.serving.servers import MODEL, Server

_REQUESTS, _TOKENS = 40, 16


@pytest.mark.engines
def test_all_requests_of_a_load_are_streamed_whole(
    real: Server, client_program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("GUIDELLM__MAX_WORKER_PROCESSES", "1")  # else each of eight imports torch
    report = tmp_path / "report.json"
    options = {
        "backend": f"kind=openai_http,target={real.url}",
        "profile": "kind=concurrent,streams=8",
        "constraint": f"kind=max_requests,count={_REQUESTS}",
        "tokenizer": f"kind=huggingface_auto,model={resolve(MODEL)}",
        "data": f"kind=synthetic_text,prompt_tokens=32,output_tokens={_TOKENS}",
        "output": f"kind=json,path={report}",
    }
    said_by(
        client_program("guidellm").with_name("guidellm"),
        *("run", "--disable-console-interactive"),
        *(f"--{name}={value}" for name, value in options.items()),
    )
    (load,) = json.loads(report.read_text())["benchmarks"]
    totals, tokens = load["metrics"]["request_totals"], load["metrics"]["output_token_count"]["successful"]
    assert (totals["successful"], totals["total"]) == (_REQUESTS, _REQUESTS)
    assert (tokens["min"], tokens["max"]) == (_TOKENS, _TOKENS)
    with_text = sum(bool(each["output"]) for each in load["requests"]["successful"])  # ends of texts alone are none
    assert load["metrics"]["time_to_first_token_ms"]["successful"]["count"] == with_text > _REQUESTS / 2

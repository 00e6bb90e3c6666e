"""`--adapters NAME=PATH`: requests name an adapter as their model, and never a path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaForCausalLM

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.store import resolve
from millrace.model_manager.store.contents import ADAPTER_WEIGHTS
from millrace.model_manager.wire.config import ModelConfig
from millrace.pipelines.cli import dispatch
from millrace.pipelines.commands.job_commands import generate
from tests.json_lines import rows_of
from tests.leased_files import leased
from tests.model_manager.engine import adapters_made_here
from tests.runtime_folders import model_loaded, processes_of, status_of
from tests.serving.servers import MODEL, Server, fake_server, running
from tests.waiting import eventually

TEXT = "The capital of Peru"
HELLO = [{"role": "user", "content": TEXT}]
LEASE = float(Path("/proc/sys/fs/lease-break-time").read_text())
"""Seconds for which the kernel lets others wait for a lease's holder."""
LETTERS = "[a-z ]{12}"
"""Text Generation Inference has no min_tokens, and the model ends its answer at once."""
GREEDY = {"temperature": 0, "max_tokens": 8, "min_tokens": 8}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of the embedded model."""
    folder = tmp_path_factory.mktemp("adapters")
    model: Any = LlamaForCausalLM.from_pretrained(resolve(MODEL), dtype=torch.float32)
    for name in ("spam", "sums"):
        adapters_made_here.write(folder / name, model, seed=len(name) + ord(name[1]), size=0.2)
    return {name: folder / name for name in ("spam", "sums")}


def flags_of(paths: dict[str, Path]) -> list[str]:
    return ["--adapters", *(f"{name}={path}" for name, path in paths.items())]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory, paths: dict[str, Path]) -> Iterator[Server]:
    """Its engine's answers depend on the adapter."""
    with fake_server(tmp_path_factory.mktemp("serve") / "rt", *flags_of(paths)) as started:
        yield started


def completed(server: Server, model: str) -> str:
    answer = server.post("/v1/completions", {"prompt": TEXT, "model": model, **GREEDY})
    assert (answer.status_code, answer.json().get("model")) == (200, model), answer.text
    return str(answer.json()["choices"][0]["text"])


def chatted(server: Server, model: str) -> str:
    answer = server.post("/v1/chat/completions", {"messages": HELLO, "model": model, **GREEDY})
    assert (answer.status_code, answer.json().get("model")) == (200, model), answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def responded(server: Server, model: str) -> str:
    own = {"temperature": 0, "max_output_tokens": 8, "min_tokens": 8}
    answer = server.post("/v1/responses", {"input": TEXT, "model": model, **own})
    assert (answer.status_code, answer.json().get("model")) == (200, model), answer.text
    return str(answer.json()["output"][0]["content"][0]["text"])


def streamed(server: Server, model: str) -> str:
    asked: Any = {"prompt": TEXT, "temperature": 0, "max_tokens": 8, "extra_body": {"min_tokens": 8}}
    parts = list(server.client().completions.create(model=model, stream=True, **asked))
    assert {part.model for part in parts} == {model}
    return "".join(part.choices[0].text for part in parts)


def generated(server: Server, model: str) -> str:
    asked = {"grammar": {"type": "regex", "value": LETTERS}} | ({} if model == MODEL else {"adapter_id": model})
    answer = server.post("/generate", {"inputs": TEXT, "parameters": asked})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["generated_text"])


def lettered(server: Server, model: str) -> str:
    asked = {"prompt": TEXT, "model": model, "temperature": 0, "max_tokens": 100, "guided_regex": LETTERS}
    return str(server.post("/v1/completions", asked).json()["choices"][0]["text"])


def embedded(server: Server, model: str) -> str:
    answer = server.post("/v1/embeddings", {"input": TEXT, "model": model})
    assert (answer.status_code, answer.json().get("model")) == (200, model), answer.text
    return str(answer.json()["data"][0]["embedding"])


@pytest.mark.parametrize("ask", [completed, streamed, chatted, responded, generated])
def test_a_request_is_answered_with_the_adapter_that_it_names(fake: Server, ask: Any) -> None:
    answers = {name: ask(fake, name) for name in (MODEL, "spam", "sums")}
    assert len(set(answers.values())) == 3, answers
    assert {name: ask(fake, name) for name in answers} == answers


def test_models_are_listed_with_their_parents(fake: Server, paths: dict[str, Path]) -> None:
    listed = httpx.get(f"{fake.url}/v1/models").json()["data"]
    assert [(each["id"], each["root"], each["parent"]) for each in listed] == [
        (MODEL, MODEL, None),
        ("spam", str(paths["spam"]), MODEL),
        ("sums", str(paths["sums"]), MODEL),
    ]
    assert httpx.get(f"{fake.url}/v1/models/sums").json() == listed[2]
    assert fake.client().models.retrieve("spam").id == "spam"


@pytest.mark.parametrize("name", ["/etc", "../spam", "spam/", "", "SPAM", "org/other"])
def test_an_unknown_name_is_not_found_wherever_it_stands(fake: Server, paths: dict[str, Path], name: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": {"messages": HELLO},
        "/v1/responses": {"input": "a"},
        "/v1/embeddings": {"input": "a"},
        "/tokenize": {"prompt": "a"},
    }
    for path, body in bodies.items():
        answer = fake.post(path, body | {"model": name})
        told = answer.json()["error"]
        assert (answer.status_code, told["code"], told["param"]) == (404, "model_not_found", "model"), path
        assert told["message"] == f"model={name!r}: is not served here; takes {MODEL}, spam, sums"
    answer = fake.post("/generate", {"inputs": "a", "parameters": {"adapter_id": name}})
    assert answer.status_code == 404
    assert answer.json()["error"] == f"adapter_id={name!r}: is not served here; takes {MODEL}, spam, sums"
    assert httpx.get(f"{fake.url}/v1/models/nosuch").status_code == 404
    refused = fake.post("/v1/completions", {"prompt": "a", "model": "spam", "adapter": str(paths["sums"])})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "adapter")


def test_lines_of_a_batch_name_adapters_too(fake: Server) -> None:
    client = fake.client()
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": name, "prompt": TEXT, **GREEDY},
        }
        for name in (MODEL, "spam", "sums")
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("a.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    ends = ("completed", "failed", "cancelled", "expired")
    eventually(lambda: client.batches.retrieve(batch.id).status in ends)
    batch = client.batches.retrieve(batch.id)
    assert batch.output_file_id is not None, batch
    bodies = [
        json.loads(line)["response"]["body"] for line in client.files.content(batch.output_file_id).text.splitlines()
    ]
    wanted = {name: completed(fake, name) for name in (MODEL, "spam", "sums")}
    assert {each["model"]: each["choices"][0]["text"] for each in bodies} == wanted
    assert len(fake.status().models) == 1, "its job shares the server's engine"


@pytest.mark.parametrize(
    ("pairs", "more", "told"),
    [
        (["spam"], [], "--adapters spam: takes NAME=PATH"),
        (["=a"], [], "--adapters =a: takes NAME=PATH"),
        (["spam="], [], "--adapters spam=: takes NAME=PATH"),
        (["a=spam", "a=sums"], [], "--adapters a=sums: takes each name once; a is there twice"),
        ([f"{MODEL}=spam"], [], f"--adapters {MODEL}={{}}/spam: takes another name; the served model is {MODEL}"),
        (["a=spam"], ["--served_model_name", "a"], "--adapters a={}/spam: takes another name; the served model is a"),
        (["a=nosuch"], [], "--adapters a=nosuch: no such folder"),
        (["a=empty"], [], "--adapters a={}/empty: {}/empty has no adapter_config.json"),
        (["a=spam", "b=sums"], ["--max_loras", "1"], "--max_loras 1: takes 2 or more, the number of --adapters, which"),
        (["a=spam"], ["--backend", "openvino"], "--adapters a=spam: the back end openvino does not take it"),
    ],
)
def test_adapters_that_cannot_be_served_are_told_at_the_start(
    pairs: list[str],
    more: list[str],
    told: str,
    paths: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = paths["spam"].parent
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path / "rt"))
    (folder / "empty").mkdir(exist_ok=True)
    backend = [] if "--backend" in more else ["--backend", "fake"]
    assert dispatch(["serve", "--port", "0", *backend, *more, "--adapters", *pairs]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"millrace: {told.replace('{}', str(folder))}")


def test_the_manager_starts_while_adapters_are_looked_up_and_goes_when_one_is_refused(
    tmp_path: Path, paths: dict[str, Path]
) -> None:
    runtime, folder = tmp_path / "rt", shutil.copytree(paths["spam"], tmp_path / "spam")
    command = [sys.executable, "-m", "millrace", "serve", "--port", "0", "--backend", "fake", *flags_of({"a": folder})]
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime)}
    with (
        leased(folder / ADAPTER_WEIGHTS) as lease,
        subprocess.Popen([*command, "--linger", "600"], stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        try:
            eventually(lambda: status_of(runtime), "the manager")
            assert process.poll() is None
            lease.truncate(1)
            lease.end()
            _, told = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 2
    assert told.startswith(f"millrace: --adapters a={folder}: ")
    assert len(told.splitlines()) == 1
    assert not runtime.exists()
    assert not [*processes_of(runtime)]


def test_a_refused_adapter_leaves_the_manager_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = tmp_path / "rt"
    with model_loaded(runtime, ModelConfig(model=MODEL, backend="fake")):
        manager = status_of(runtime)
        assert manager is not None
        monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
        assert dispatch(["serve", "--port", "0", "--backend", "fake", "--adapters", "a=nosuch"]) == 2
        assert "--adapters a=nosuch: no such folder" in capsys.readouterr().err
        found = status_of(runtime)
        assert found is not None
        assert (found.pid, len(found.models)) == (manager.pid, 1)


@pytest.fixture
def changing(tmp_path: Path, paths: dict[str, Path]) -> Iterator[tuple[Server, Path]]:
    """A server that has not been asked yet, and the weights of its only adapter, which the test may write."""
    folder = shutil.copytree(paths["spam"], tmp_path / "spam")
    with fake_server(tmp_path / "rt", *flags_of({"spam": folder}), "--shutdown_timeout", "1") as started:
        yield started, folder / ADAPTER_WEIGHTS


def test_the_first_request_of_an_adapter_reads_no_file_again(changing: tuple[Server, Path]) -> None:
    server, weights = changing
    with leased(weights) as lease:
        answers = {ask.__name__: ask(server, "spam") for ask in (completed, chatted, embedded)}
        assert not lease.is_wanted()
    assert {ask.__name__: ask(server, "spam") for ask in (completed, chatted, embedded)} == answers


def test_while_an_adapter_is_looked_up_other_requests_are_answered(
    changing: tuple[Server, Path], paths: dict[str, Path]
) -> None:
    server, weights = changing
    before = {name: completed(server, name) for name in (MODEL, "spam")}
    shutil.copyfile(paths["sums"] / ADAPTER_WEIGHTS, weights)
    within = LEASE / 2  # after the lease the look-up goes on, and so do those that wait for it
    with ThreadPoolExecutor(2) as beside, leased(weights) as lease:
        looked_up = beside.submit(completed, server, "spam")
        eventually(lease.is_wanted, "the look-up")
        chatted_meanwhile = beside.submit(chatted, server, "spam")
        asked = {"prompt": TEXT, "model": MODEL, **GREEDY}
        plain = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=within)
        assert plain.json()["choices"][0]["text"] == before[MODEL]
        assert httpx.get(f"{server.url}/health", timeout=within).status_code == 200
        assert not looked_up.done()
        assert not chatted_meanwhile.done()
        lease.end()
        assert looked_up.result() not in before.values()
        assert chatted_meanwhile.result()
    assert completed(server, "spam") == looked_up.result()


def test_a_server_ends_though_an_adapter_is_still_looked_up_and_who_waits_is_told(
    changing: tuple[Server, Path],
) -> None:
    server, weights = changing
    os.utime(weights)
    with ThreadPoolExecutor(1) as beside, leased(weights) as lease:
        asked = beside.submit(server.post, "/v1/completions", {"prompt": TEXT, "model": "spam"})
        eventually(lease.is_wanted, "the look-up")
        server.process.terminate()
        told = asked.result()
        assert (told.status_code, told.json()["error"]["message"]) == (503, "the server ends")
        assert server.ended() == 0


def test_answers_are_those_of_a_job_whose_rows_name_the_adapters(
    tmp_path: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "rt"
    flags = ["--dtype", "float32", "--kv_cache_gib", "0.05"]
    names = (MODEL, "spam", "sums")
    try:
        with running(runtime, *flags_of(paths), *flags) as server:
            server.wait_until_ready()
            asks = (completed, streamed, generated, lettered)
            answers = {ask.__name__: {name: ask(server, name) for name in names} for ask in asks}
            vectors = {embedded(server, name) for name in names}
            chats = {name: (chatted(server, name), responded(server, name)) for name in names}
            rows = [{"id": name, "prompt": TEXT, "adapter": str(paths.get(name, ""))} for name in names]
            (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
            files = ["--input", f"{tmp_path}/rows.jsonl", "--output", f"{tmp_path}/out/c"]
            monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
            own = ["--max_loras", "2", "--chat", "never", "--max_tokens", "8", "--min_tokens", "8", "--quiet"]
            assert generate([*files, *own, *flags]) == 0
            assert len(server.status().models) == 1, "the job shares the server's engine"
    finally:
        stop_models(runtime)
    wanted = {row["id"]: row["text"] for row in rows_of(tmp_path, "out/c-*.jsonl")}
    assert len(set(wanted.values())) == 3
    assert answers["completed"] == wanted
    assert answers["streamed"] == wanted
    assert answers["generated"] == answers["lettered"]
    assert len(set(answers["generated"].values())) == 3
    assert len(vectors) == 3
    assert all(chat == response for chat, response in chats.values())
    assert len(set(chats.values())) == 3

"""Errors of a request have OpenAI's form, and the status that clients go by."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from millrace.model_manager.client.status import stop_models
from tests.serving.servers import MODEL, Server, fake_server, peak_memory, running
from tests.waiting import eventually

HELLO: Any = [{"role": "user", "content": "Hello"}]
COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"

CALL: dict[str, Any] = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c", "content": "5"}


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def tool_of(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or None}}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error, which has OpenAI's form."""
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": ["Hi"] * 2048, "n": 64}, "n"),
        (COMPLETIONS, {"prompt": "a" * 600_000}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": 5}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
        (COMPLETIONS, {"prompt": [True]}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": "word " * 5000}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "temperature": -1}, "temperature"),
        (COMPLETIONS, {"prompt": "a", "temperature": "warm"}, "temperature"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "top_p": 2}, "top_p"),
        (COMPLETIONS, {"prompt": "a", "n": 0}, "n"),
        (COMPLETIONS, {"prompt": "a", "stop": ["a"] * 20}, "stop"),
        (COMPLETIONS, {"prompt": "a", "stream": "yes"}, "stream"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": 5}, "logit_bias"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2}, "best_of"),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix"),
        (COMPLETIONS, {"prompt": "a", "skip_special_tokens": False}, "skip_special_tokens"),
        (COMPLETIONS, {"prompt": "a", "adapter": "/etc"}, "adapter"),
        (COMPLETIONS, {"prompt": "a", "guided_regex": "("}, "guided_regex"),
        (COMPLETIONS, {"prompt": "a", "guided_json": {"type": "nothing"}}, "guided_json"),
        (COMPLETIONS, {"prompt": "a", "structured_outputs": {"regex": "("}}, "structured_outputs"),
        (COMPLETIONS, {"prompt": "a", "constraint": {"regex": "("}}, "constraint.regex"),
        (COMPLETIONS, {"prompt": "a", "max_completion_tokens": 0}, "max_completion_tokens"),
        (COMPLETIONS, {"prompt": ["a", [5]]}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        (COMPLETIONS, {"prompt": "a", "stream": True, "stream_options": {"usage": True}}, "stream_options"),
        (COMPLETIONS, {"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
        (COMPLETIONS, {"prompt": "a", "structured_outputs": {}}, "structured_outputs"),
        (COMPLETIONS, {"prompt": "a", "cache_salt": 5}, "cache_salt"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "Hello"}, "messages"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        (CHAT, {"messages": [{"role": "nobody", "content": "a"}]}, "messages"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (CHAT, {"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 50}, "top_logprobs"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
        (CHAT, {"messages": HELLO, "response_format": schema_of({"type": "nothing"})}, "response_format"),
        (CHAT, {"messages": HELLO, "tools": [tool_of("f"), tool_of("g"), tool_of("f")]}, "tools[2].function.name"),
        (CHAT, {"messages": HELLO, "tools": [tool_of("f", type="nothing")], "tool_choice": "required"}, "tools"),
        (CHAT, {"messages": [*HELLO, RESULT]}, "messages[1].tool_call_id"),
        (CHAT, {"messages": [*HELLO, CALL, RESULT | {"tool_call_id": "other"}]}, "messages[2].tool_call_id"),
        (CHAT, {"messages": [*HELLO, CALL, RESULT | {"content": 5}]}, "messages[2].content"),
        (CHAT, {"messages": [*HELLO, CALL, RESULT | {"content": [{"type": "image"}]}]}, "messages[2].content[0]"),
        (CHAT, {"messages": [*HELLO, CALL | {"tool_calls": [5]}]}, "messages[1].tool_calls"),
        (CHAT, {"messages": [*HELLO, CALL | {"content": 5}]}, "messages[1].content"),
        (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
        (CHAT, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": HELLO, "functions": [{}]}, "functions"),
        (EMBEDDINGS, {"input": "a", "dimensions": 3}, "dimensions"),
        (EMBEDDINGS, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        (EMBEDDINGS, {"input": "word " * 5000}, "input"),
        (EMBEDDINGS, {"input": ""}, "input"),
        (EMBEDDINGS, {"input": ["a", [5]]}, "input"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {}, "prompt"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
def test_a_wrong_parameter_is_named(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    for stream in ({}, {"stream": True}) if path in (COMPLETIONS, CHAT) and "stream" not in body else ({},):
        answer = server.post(path, body | stream)
        error = error_of(answer)
        assert (answer.status_code, error["param"]) == (400, param), error
        assert error["type"] == "invalid_request_error"


LARGE = "x" * 2**20
LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 1000}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a", "stop": LARGE}),
        (COMPLETIONS, {"prompt": "a", "stop": [LARGE]}),
        (COMPLETIONS, {"prompt": "a", "cache_salt": LARGE}),
        (COMPLETIONS, {"prompt": "a", "bad_words": LARGE}),
        (COMPLETIONS, {"prompt": "a", "temperature": LARGE}),
        (COMPLETIONS, {"prompt": "a", "model": LARGE}),
        (COMPLETIONS, {"prompt": "a", "constraint": LARGE}),
        (COMPLETIONS, {"prompt": "a", "constraint": {LARGE: 1}}),
        (COMPLETIONS, {"prompt": "a", "guided_regex": f"({LARGE[:60_000]}"}),
        (COMPLETIONS, {"prompt": "a", "guided_grammar": f"start: {LARGE}"}),
        (COMPLETIONS, {"prompt": "a", "guided_json": {"type": LARGE}}),
        (COMPLETIONS, {"prompt": "a", "stream": True, "stream_options": {LARGE: 1}}),
        (CHAT, {"messages": HELLO, "top_logprobs": LARGE}),
        (CHAT, {"messages": HELLO, "response_format": {"type": LARGE}}),
        (
            CHAT,
            {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {LARGE: 1, "schema": {}}}},
        ),
        (CHAT, {"messages": HELLO, "tool_choice": LARGE}),
        (CHAT, {"messages": HELLO, "tools": [tool_of(LARGE), tool_of(LARGE)]}),
        (CHAT, {"messages": [{"role": LARGE, "content": "a"}]}),
        (CHAT, {"messages": [{"role": "user", "content": "a", LARGE: 5}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": LARGE}]}]}),
        (CHAT, {"messages": [{"role": "tool", "content": "a", "tool_call_id": LARGE}]}),
        (EMBEDDINGS, {"input": "a", "encoding_format": LARGE}),
        ("/detokenize", {"tokens": LARGE}),
    ],
)
def test_a_large_value_is_clipped_in_its_error(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, body)
    error = error_of(answer)
    assert answer.status_code in (400, 404)
    assert len(error["message"]) <= 600
    assert len(error["param"] or "") <= 100


def test_what_a_tool_gave_is_told_to_the_model_in_either_form(server: Server) -> None:
    one, other = (
        server.post("/tokenize", {"messages": [*HELLO, CALL, RESULT | {"content": content}]}).json()["tokens"]
        for content in ("5", [{"type": "text", "text": "5"}])
    )
    assert one == other


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(server: Server, body: bytes) -> None:
    answer = httpx.post(f"{server.url}{COMPLETIONS}", content=body)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("body", "told"),
    [(b'{"prompt": "\\ud800"}', "\\ud800 is one half of a character"), (b"[" * 100_000, "nested too deep")],
)
def test_what_is_wrong_with_json_is_told_plainly(server: Server, body: bytes, told: str) -> None:
    assert told in error_of(httpx.post(f"{server.url}{COMPLETIONS}", content=body))["message"]


def test_an_own_client_raises_its_own_errors(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p=2"):
        server.client().completions.create(model=MODEL, prompt="a", top_p=2)
    with pytest.raises(openai.NotFoundError, match="is not served here; takes millrace-tiny"):
        server.client().completions.create(model="gpt", prompt="a")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/models/gpt", 404, "model_not_found"),
        ("GET", "/v2/nothing", 404, "not_found"),
        ("GET", COMPLETIONS, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_other_routes_and_methods_are_refused(server: Server, method: str, path: str, status: int, code: str) -> None:
    answer = httpx.request(method, f"{server.url}{path}")
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)


def test_what_the_server_is_and_serves_is_told(server: Server) -> None:
    (model,) = server.client().models.list().data
    assert (model.id, model.owned_by) == (MODEL, "millrace")
    assert server.client().models.retrieve(MODEL).id == MODEL
    for path in ("/health", "/ready", "/version", "/docs"):
        assert httpx.get(f"{server.url}{path}").status_code == 200
    described = httpx.get(f"{server.url}/openapi.json").json()
    assert {COMPLETIONS, CHAT, EMBEDDINGS, "/v1/models"} <= described["paths"].keys()
    assert described["paths"]["/v1/batches"].keys() == {"get", "post"}
    assert described["paths"]["/v1/files/{file_id}"]["delete"]["parameters"][0]["name"] == "file_id"


REQUIRED: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a", "max_tokens": 1},
    CHAT: {"messages": HELLO, "max_tokens": 1},
    EMBEDDINGS: {"input": "a"},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
    "/generate": {"inputs": "a"},
}


@pytest.mark.parametrize("path", REQUIRED)
def test_each_field_that_is_described_is_taken_and_each_other_one_is_named(server: Server, path: str) -> None:
    described = httpx.get(f"{server.url}/openapi.json").json()
    reference = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields = described["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
    assert fields.keys() >= REQUIRED[path].keys()
    for name, field in fields.items():
        assert field["description"], name
    defaults = {name: field["default"] for name, field in fields.items() if field.get("default") is not None}
    answer = server.post(path, defaults | REQUIRED[path])
    assert (answer.status_code, answer.headers.get("x-millrace-ignored")) == (200, None), answer.text
    answer = server.post(path, REQUIRED[path] | {"nonsense": 1})
    assert (answer.status_code, answer.headers.get("x-millrace-ignored")) == (200, "nonsense"), answer.text


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 60) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n{")
        answer = sock.makefile("rb").read()  # it closes the connection
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"


def test_a_body_of_unknown_length_is_not_kept_beyond_its_limit(server: Server) -> None:
    """What comes after the answer is read, so that its client sees the answer, and thrown away."""

    def parts() -> Any:
        for _ in range(400):
            yield b"x" * 2**18

    before = peak_memory(server)
    answer = httpx.post(f"{server.url}{COMPLETIONS}", content=parts(), timeout=60)
    assert answer.status_code == 413
    assert peak_memory(server) < before + 50 * 2**20, "of 100 MiB"


def test_limits_of_the_server_are_told_with_their_flags(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--max_inflight", "1", "--served_model_name", "org/mine", step=0.05) as server:
        with httpx.stream("POST", f"{server.url}{COMPLETIONS}", json=LONG | {"stream": True}) as stream:
            lines = stream.iter_lines()  # kept: it closes the stream when it is let go
            assert next(lines).startswith("data: {")
            busy = server.post(COMPLETIONS, LONG)
            assert (busy.status_code, error_of(busy)["type"]) == (429, "rate_limit_error")
            assert busy.headers["retry-after"] == "1"
        assert server.client().models.retrieve("org/mine").id == "org/mine"


def test_no_answer_has_more_tokens_than_the_server_allows(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--max_tokens", "7") as server:
        asks: list[tuple[str, dict[str, Any], str]] = [
            (COMPLETIONS, {"prompt": "a"}, "max_tokens"),
            (CHAT, {"messages": HELLO}, "max_tokens"),
            (CHAT, {"messages": HELLO}, "max_completion_tokens"),
            ("/v1/responses", {"input": "a"}, "max_output_tokens"),
        ]
        for path, body, name in asks:
            answers = [server.post(path, body), server.post(path, body | {name: 7})]
            for usage in (answer.json()["usage"] for answer in answers):
                assert usage.get("completion_tokens", usage.get("output_tokens")) <= 7, path
            refused = server.post(path, body | {name: 8})
            assert (refused.status_code, error_of(refused)["param"]) == (400, name)
            assert error_of(refused)["message"] == f"{name}=8: takes at most 7 here (--max_tokens of the server)"
        whole = server.post("/generate", {"inputs": "a", "parameters": {"details": True}}).json()
        assert whole["details"]["generated_tokens"] <= 7
        refused = server.post("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 8}})
        assert refused.status_code == 422
        assert "max_new_tokens=8: takes at most 7 here" in refused.json()["error"]


def test_an_answer_that_takes_too_long_is_cut_and_told(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--request_timeout", "1", step=0.05) as server:
        told = eventually(lambda: events_of(server, LONG | {"stream": True}), "a stream has begun in time")[-2:]
        assert json.loads(told[0].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        assert told[1] == "data: [DONE]"
        late = server.post(COMPLETIONS, LONG)
        assert (late.status_code, error_of(late)["code"]) == (504, "deadline_exceeded")


def events_of(server: Server, body: dict[str, Any]) -> list[str] | None:
    """The lines of a stream; none where it was too late for a single token."""
    answer = server.post(COMPLETIONS, body)
    return [line for line in answer.text.splitlines() if line] if answer.status_code == 200 else None


def test_keys_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\n\n second \n")
    with fake_server(tmp_path / "rt", "--api_key_file", str(tmp_path / "keys")) as server:
        for key in ("wrong", "x" * 5000, "firs", "schlüssel"):
            answer = httpx.get(f"{server.url}/v1/models", headers={b"authorization": f"Bearer {key}".encode()})
            assert (answer.status_code, error_of(answer)["code"]) == (401, "invalid_api_key")
        for path in ("/health", "/ready"):
            assert httpx.get(f"{server.url}{path}").status_code == 200
        assert server.client("second").completions.create(model=MODEL, prompt="a").choices
        with pytest.raises(openai.AuthenticationError):
            server.client("other").completions.create(model=MODEL, prompt="a")


def test_browsers_of_an_origin_that_is_named_may_ask_over_tls(tmp_path: Path) -> None:
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2"]
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *named], check=True, capture_output=True)
    flags = ("--ssl_certfile", cert, "--ssl_keyfile", key, "--cors_origin", "https://app.example", "--backend", "fake")
    runtime = tmp_path / "rt"
    with running(runtime, *flags) as server, httpx.Client(verify=ssl.create_default_context(cafile=cert)) as client:
        assert server.url.startswith("https://")
        eventually(lambda: client.get(f"{server.url}/ready").status_code == 200)
        for origin, allowed in (("https://app.example", "https://app.example"), ("https://other.example", None)):
            answer = client.get(f"{server.url}/health", headers={"origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed
    stop_models(runtime)

"""Settings of the server: what is impossible is named, with its flag on the command line."""

from __future__ import annotations

import asyncio
import hmac
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.cli import dispatch
from millrace.serving.http.keys import KeyCheck, read_keys
from millrace.serving.settings import ServeConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"port": 70000},
        {"max_inflight": 0},
        {"max_uploads": 0},
        {"max_tokens": 0},
        {"max_body_mib": 0.0},
        {"max_bodies_mib": -1.0},
        {"body_timeout": 0.0},
        {"served_model_name": ""},
        {"request_timeout": float("inf")},
        {"stall_timeout": -1.0},
        {"ssl_certfile": "cert.pem"},
        {"host": 5},
    ],
)
def test_an_impossible_setting_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ServeConfig(**settings)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--port", "70000"], "--port 70000: takes 0 (a free one) to 65535"),
        (["--frobnicate"], "unknown flag --frobnicate: --help lists all"),
        (["--host", "no.such.host.invalid", "--port", "0"], "--host no.such.host.invalid: is no address"),
        (["--api_key_file", "absent"], "--api_key_file absent: No such file"),
        (["--ssl_certfile", "absent", "--ssl_keyfile", "absent"], "--ssl_certfile absent: No such file"),
    ],
)
def test_a_wrong_flag_is_told_in_one_sentence(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dispatch(["serve", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"millrace: {told}")


def test_a_runtime_folder_that_others_can_reach_is_refused_before_the_server_says_that_it_serves(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path))
    assert dispatch(["serve", "--port", "0", "--backend", "fake"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert (
        told
        == f"millrace: MILLRACE_RUNTIME_DIR={tmp_path}: takes a folder of mode 700, it has 755: chmod 700 {tmp_path}"
    )


CERTIFICATE = "-----BEGIN CERTIFICATE-----\n"
"""What begins as a certificate, and is none."""


@pytest.mark.parametrize(
    ("flags", "files", "told"),
    [
        (["--api_key_file", "keys"], {"keys": b"\xef\xbb\xbf\r\n \r\n"}, "--api_key_file keys: holds no key"),
        (["--api_key_file", "keys"], {"keys": "key".encode("utf-16")}, "--api_key_file keys: takes text in UTF-8"),
        (["--served_model_name", ""], {}, "--served_model_name ''"),
        ([], {"cert": b"nothing", "key": b"nothing"}, "--ssl_certfile cert: takes a PEM file"),
        ([], {"cert": CERTIFICATE.encode(), "key": CERTIFICATE.encode()}, "--ssl_certfile cert: holds no certificate"),
        ([], {"cert": None, "key": b"nothing"}, "--ssl_keyfile key: takes a PEM file"),
        ([], {"cert": None, "key": CERTIFICATE.encode()}, "--ssl_keyfile key: holds no private key of the certificate"),
        ([], {"cert": None, "key": "other"}, "--ssl_keyfile key: holds no private key of the certificate"),
        ([], {"cert": None, "key": "encrypted"}, "--ssl_keyfile key: takes a key without a passphrase"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_flag(
    flags: list[str],
    files: dict[str, bytes | str | None],
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        if isinstance(content, bytes):
            Path(name).write_bytes(content)
        elif name == "key":
            make_key("key", passphrase=content == "encrypted")
        else:
            make_certificate("own", name)
    tls = ["--ssl_certfile", "cert", "--ssl_keyfile", "key"] if "cert" in files else []
    assert dispatch(["serve", "--port", "0", "--backend", "fake", *flags, *tls]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"millrace: {told}")


def make_certificate(key: str, certificate: str) -> None:
    """A certificate of a new key."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    subprocess.run([*command, "-subj", "/CN=here"], check=True, capture_output=True)


def make_key(key: str, *, passphrase: bool) -> None:
    """A key that belongs to no certificate."""
    more = ["-aes256", "-pass", "pass:secret"] if passphrase else []
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-out", key, *more]
    subprocess.run(command, check=True, capture_output=True)


def test_a_file_of_keys_may_be_windows_own(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\r\n  second\t\r\n")
    assert read_keys(str(path)) == [b"first", b"second"]


def test_keys_are_compared_by_digests_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hmac.compare_digest` returns early for two values of different lengths."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        let_in.append(True)

    async def status(key: bytes) -> list[int]:
        told: list[int] = []

        async def send(message: Message) -> None:
            told.extend([message["status"]] if "status" in message else [])

        scope = {"type": "http", "path": "/v1/models", "method": "GET", "headers": [(b"authorization", key)]}
        await KeyCheck(app, [b"first", b"a longer one"], ())(scope, lambda: asyncio.sleep(0, {}), send)
        return told

    monkeypatch.setattr("millrace.serving.http.keys.hmac.compare_digest", noted)
    let_in: list[bool] = []
    given = (b"Bearer first", b"Bearer f", b"Bearer ", b"Basic first", b"Bearer " + b"a" * 999, b"Bearer a longer one")
    assert [asyncio.run(status(key)) for key in given] == [[], [401], [401], [401], [401], []]
    assert len(let_in) == 2
    assert len(compared) == 2 * len(given), "with each key, also behind the right one"
    assert {len(each) for pair in compared for each in pair} == {32}


@pytest.mark.parametrize(
    ("command", "missing"), [("serve", "uvicorn"), ("serve", "starlette"), ("metrics", "prometheus_client")]
)
def test_a_missing_extra_is_told_with_the_command_that_installs_it(command: str, missing: str, tmp_path: Path) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\nfrom millrace.pipelines.cli import dispatch\n"
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(dispatch(['{command}', '--port', '0']))"],
        env=os.environ | {"MILLRACE_RUNTIME_DIR": str(tmp_path / "rt")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert f"{command} needs {missing}, which" in ended.stderr
    assert "pip install 'beam-millrace[serve]'" in ended.stderr


def test_the_server_imports_neither_beam_nor_torch() -> None:
    program = (
        "import sys, contextlib\n"
        "import millrace.pipelines.commands.serve, millrace.serving.server, millrace.model_manager.client\n"
        "print([name for name in ('apache_beam', 'torch', 'transformers', 'numba') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_the_command_has_the_manager_started_before_it_imports_its_client() -> None:
    program = (
        "import sys, millrace.pipelines.commands.serve, millrace.model_manager.client.access\n"
        "print([name for name in ('jinja2', 'starlette', 'uvicorn') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"

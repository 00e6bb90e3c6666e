"""A key is shown nowhere, however a server writes it; what is wrong with a key or a certificate is said."""

from __future__ import annotations

import logging
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from millrace.model_manager.wire.endpoint_options import EndpointOptions
from millrace.model_manager.wire.errors import ConfigError, ModelLoadFailed
from tests.model_manager.backends.endpoint_engines import (
    answers,
    asked,
    drained,
    engine_for,
    no_long_waits,
    refusal,
    servers,
    text,
)
from tests.model_manager.backends.stand_in_server import Servers

__all__ = ["no_long_waits", "servers"]

SLASHED = "sk-a/b+c=d/secret"
SAID = {
    "plain": b'{"error": {"message": "bad key sk-a/b+c=d/secret"}}',
    "escaped": rb'{"error": {"message": "bad key sk-a\/b+c=d\/secret"}}',
    "by number": rb'{"error": {"message": "bad key sk-a\u002fb\u002Bc=d\u002fsecret"}}',
    "no JSON": rb"bad key sk-a\/b+c=d\/secret",
    "of a URL": b'{"error": {"message": "bad key sk-a%2Fb%2bc%3Dd%2Fsecret"}}',
    "cut": b"x" * 490 + b" sk-a/b+c=d/secret",
    "cut by the server": b"bad key sk-a/b+c=d/secr",
}


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("body", SAID.values(), ids=SAID)
def test_a_key_is_hidden_however_a_server_writes_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int, body: bytes
) -> None:
    monkeypatch.setenv("MY_KEY", SLASHED)
    server = servers.start(lambda _prompt, _tries: (status, body))
    with engine_for(server.url, key_env="MY_KEY", retries=1) as engine, caplog.at_level(logging.INFO):
        _, message = refusal(answers(engine, ["a"])["a"])
    for shown in (message, caplog.text):
        assert "sk-a" not in shown
        assert "secret" not in shown


def test_a_key_in_a_redirection_is_hidden(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", SLASHED)
    server = servers.start(lambda _prompt, _tries: (302, {"Location": "http://b/?k=sk-a%2Fb%2Bc%3Dd/secret&x=1"}))
    with engine_for(server.url, key_env="MY_KEY") as engine:
        engine.add(asked("a"))
        with pytest.raises(ModelLoadFailed, match=r"it points to http://b/\?k=\*\*\*&x=1: name that in urls"):
            drained(engine)


def test_an_answer_that_holds_the_key_is_not_touched(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "EMPTY")
    with engine_for(servers.start().url, key_env="MY_KEY") as engine:
        assert text(answers(engine, ["EMPTY stomach"])["EMPTY stomach"]) == "<EMPTY stomach>"


def test_a_key_of_two_lines_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-one\nsecret")
    with pytest.raises(ConfigError, match=r"key_env='MY_KEY': takes a variable whose value is one line") as refused:
        EndpointOptions(urls="http://a", key_env="MY_KEY").key()
    assert "secret" not in str(refused.value)


def test_a_certificate_that_is_not_trusted_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    key = ConnectionKey("a", 443, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise aiohttp.ClientConnectorCertificateError(key, error)

    monkeypatch.setattr(aiohttp.ClientSession, "request", refuse)
    said = "its certificate is not trusted: self-signed certificate; SSL_CERT_FILE names a file of authorities to trust"
    with pytest.raises(ModelLoadFailed, match=said), engine_for("https://a", retries=0):
        pass

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.commands.view_server import served


@pytest.fixture
def address() -> Iterator[str]:
    with served(lambda query: f"<p>{query}") as found:
        yield found


def ask(
    address: str, path: str | None = None, method: str = "GET", host: str | None = None
) -> tuple[int, str, dict[str, str]]:
    parts = urlsplit(address)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=60)) as connection:
        headers = {} if host is None else {"Host": host}
        connection.request(method, parts.path if path is None else path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


def test_a_page_is_served_under_the_token_alone(address: str) -> None:
    path = urlsplit(address).path
    assert len(path) > 30
    assert ask(address, f"{path}?page=2")[:2] == (200, "<p>page=2")
    for other in ("/", "/favicon.ico", path[:-2] + "/", path.rstrip("/"), f"{path}../etc/passwd", f"{path}x"):
        assert ask(address, other)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "evil.example:80", "", "127.0.0.1:1", "[::1]"])
def test_another_name_is_refused(address: str, host: str) -> None:
    status, said, _ = ask(address, host=host)
    assert (status, "<p>" in said) == (403, False)


def test_localhost_is_a_name_of_this_server(address: str) -> None:
    assert ask(address, host=f"localhost:{urlsplit(address).port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_done_but_look(address: str, method: str) -> None:
    assert ask(address, method=method)[0] == 501
    status, body, headers = ask(address, method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, "", "3")


def test_answers_may_not_be_kept_framed_or_run(address: str) -> None:
    headers = ask(address)[2]
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Server"] == "millrace"


def test_rows_that_cannot_be_read_are_a_sentence() -> None:
    def fails(_: str) -> str:
        raise OSError("the disk is gone")

    with served(fails) as address:
        assert ask(address)[:2] == (500, "the rows cannot be read: the disk is gone\n")


def test_any_other_error_is_a_sentence_too_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: str) -> str:
        raise KeyError("secret")

    with served(fails) as address:
        status, said, _ = ask(address)
    assert (status, said.split(";")[0]) == (500, "the page cannot be made: KeyError")
    assert [each.getMessage() for each in caplog.records] == ["a page cannot be made"]


def test_a_port_that_is_taken_is_named(address: str) -> None:
    port = urlsplit(address).port
    assert port
    with pytest.raises(ConfigError, match=f"--port {port}: cannot be listened on"), served(str, port):
        pass

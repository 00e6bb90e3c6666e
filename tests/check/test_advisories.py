"""Whether known vulnerabilities in packages can be asked for is decided by what pypi.org answers."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import HTTPServer

import pytest

from tests.check import advisories
from tests.check.advisories import main, reason_against
from tests.servers.http_threads import JsonHandler, running
from tests.servers.processes import free_port

ANSWERS = {
    "/with": (200, {"info": {}, "vulnerabilities": []}),
    "/mirror": (200, {"files": []}),
    "/list": (200, []),
    "/absent": (404, {"message": "Not Found"}),
}


class Index(JsonHandler):
    """Answers as a path asks."""

    def do_GET(self) -> None:  # noqa: N802
        if self.path not in ANSWERS:
            return  # and closes the connection
        status, content = ANSWERS[self.path]
        self.send_json(content, status)


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    with running(HTTPServer(("127.0.0.1", 0), Index)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


def test_an_index_with_a_list_of_vulnerabilities_can_be_asked(index: str) -> None:
    assert reason_against(f"{index}/with") is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/mirror", "no list"), ("/list", "no list"), ("/absent", "404"), ("/closed", "Remote end closed")],
)
def test_an_index_without_one_cannot(index: str, path: str, reason: str) -> None:
    assert reason in (reason_against(index + path) or pytest.fail("it can"))


def test_where_it_cannot_be_asked_the_command_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/"
    monkeypatch.setattr(advisories.reason_against, "__defaults__", (nobody,))
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value).startswith(f"known vulnerabilities in packages cannot be asked for from here: {nobody}: ")
    assert capsys.readouterr().out == ""

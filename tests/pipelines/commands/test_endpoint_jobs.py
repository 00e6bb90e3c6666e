"""Jobs whose rows go to servers over HTTP, as a person sees them: a real manager and engine, and real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.pipelines.cli import dispatch
from tests.json_lines import write_rows
from tests.model_manager.backends.stand_in_server import Behaviour, Servers, serving
from tests.pipelines.answers import answered
from tests.pipelines.commands.job_graphs import graphs_of

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with serving() as found:
        yield found


@pytest.fixture
def run(tmp_path: Path, runtime: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a job of three rows; its status, and what it says on stderr."""
    assert runtime
    rows = write_rows(tmp_path / "rows.jsonl", ({"id": str(n), "prompt": f"row {n}"} for n in range(3)))

    def job(url: str, *flags: str) -> tuple[int, str]:
        places = ["--input", str(rows), "--output", f"{tmp_path}/out", "--overwrite"]
        status = dispatch(["run", *places, "--model", "m", "--endpoint", url, *flags])
        return status, capsys.readouterr().err

    return job


BUSY: Any = (429, {"Retry-After": "1"})


def test_a_person_reads_why_requests_are_sent_again(
    servers: Servers, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    server = servers.start(lambda _prompt, _tries: None if "is sent again" in caplog.text else BUSY)
    status, said = run(server.url)
    assert status == 0, said
    assert "a request is sent again after 1 s, as the server asks" in said
    assert "answered 429: no row" in said


def test_a_key_goes_to_the_servers_of_its_own_job_alone(
    servers: Servers, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = servers.start(key="alice-1"), servers.start(key="bob-2")
    flags = ["--backend_options", "key_env=MY_KEY"]
    monkeypatch.setenv("MY_KEY", "alice-1")
    status, said = run(alice.url, "--linger", "300", *flags)
    assert status == 0, said
    monkeypatch.setenv("MY_KEY", "bob-2")
    status, said = run(bob.url, *flags)
    assert status == 2, said
    assert "this machine's manager was started without this value of MY_KEY" in said
    monkeypatch.delenv("MY_KEY")
    status, said = run(bob.url, *flags)
    assert status == 2, said
    assert "key_env" in said
    assert not bob.seen


@pytest.mark.parametrize(
    "behaves", [lambda *_: None, lambda *_: (400, b"bad key sk-secret-1")], ids=["answers", "refuses"]
)
def test_a_key_is_in_nothing_that_a_job_shows_or_leaves(
    servers: Servers,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    behaves: Behaviour,
) -> None:
    """In ps, on stderr, in the job's graph, in logs, rows, dead letters, settings and the report's page."""
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    server, graphs = servers.start(behaves), graphs_of(monkeypatch)
    flags = ["--linger", "300", "--log_level", "debug", "--backend_options", "key_env=MY_KEY"]
    _, said = run(server.url, *flags)
    assert "secret" not in said
    for flags in ([], ["--json"]):
        answered("ps", *flags)
        shown = capsys.readouterr().out
        assert "manager" in shown
        assert '"m"' in shown or "model    m: " in shown
        assert "secret" not in shown
    assert [b"MY_KEY" in each for each in graphs] == [True], "the graph names the key's variable"
    assert b"secret" not in graphs[0]
    left = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {Path("rt/manager.log"), Path("out.report.html"), Path(".millrace/out.settings.json")} <= left.keys()
    assert [path for path, found in left.items() if b"secret" in found] == []
    assert server.seen, "it was asked, with the key"


@pytest.mark.parametrize(
    ("refuses", "why"),
    [
        (401, "it refuses a request without a key (the option key_env names its variable)"),
        (403, "it refuses a request without a key (the option key_env names its variable)"),
        (404, "check the options urls and dialect, and the model's name"),
    ],
)
def test_a_server_that_refuses_all_rows_in_mid_job_is_a_failed_job_in_one_sentence(
    servers: Servers, run: Run, tmp_path: Path, refuses: int, why: str
) -> None:
    def behaves(prompt: str, _tries: int) -> Any:
        """The key or the model is withdrawn once a row is written, which --resume has then."""
        if prompt != "row 2":
            return None
        return refuses if any(path.stat().st_size for path in tmp_path.glob("out.tmp/*/completions-*")) else BUSY

    server = servers.start(behaves)
    status, shown = run(server.url)
    assert status == 1
    said = [line for line in shown.splitlines() if line.startswith("millrace: ")]
    assert len(said) == 1
    assert said[0].startswith(f"millrace: the job failed: {server.url}")
    assert f"answered {refuses}: no row 2; {why}" in said[0]
    assert said[0].endswith(f"; --resume goes on from what is in {tmp_path}/out.tmp")
    assert "Traceback" not in shown

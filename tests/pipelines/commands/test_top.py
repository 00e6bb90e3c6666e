"""`millrace top` beside a job: one frame, JSON, live in a terminal, and a page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace.model_manager.client.status import stop_models
from millrace.pipelines.cli import dispatch
from tests.forked_commands import run
from tests.job_commands import job_command, started
from tests.runtime_folders import status_of
from tests.terminals import OnTerminal, on_terminal
from tests.waiting import eventually

TOP = [sys.executable, "-m", "millrace", "top"]
ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"
"""What switches a terminal to its other screen, and back."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A runtime folder in which a job runs, long enough for all tests, with a dead letter and some answered rows."""
    folder = tmp_path_factory.mktemp("top")
    rows = [{"prompt": "first", "max_tokens": -1}, *({"prompt": f"question {number}"} for number in range(5000))]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = ["--backend=fake", "--max_num_seqs=2", "--max_tokens=5", "--orphan_grace=0.1"]
    runtime = folder / "rt"
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime), "MILLRACE_FAKE_STEP_SECONDS": "0.05"}
    command = [*job_command("run", folder / "a.jsonl", folder / "out/c"), *flags]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
        try:
            with started(command, stderr=subprocess.DEVNULL, env=environment) as process:
                eventually(lambda: process.poll() is not None or _answered(), "rows of the job are answered")
                assert process.poll() is None
                yield runtime
        finally:
            stop_models(runtime)


def _answered() -> bool:
    return any(job["done"] > 2 and job["rows"] == [] for job in figures()["jobs"])


def figures() -> dict[str, Any]:
    """What --json prints."""
    ended = subprocess.run([*TOP, "--json"], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def unstyled(shown: str) -> str:
    """What a terminal shows; a new frame begins on a line of its own."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.replace("\x1b[H", "\n"))


@pytest.mark.usefixtures("machine")
def test_json_is_one_object_with_jobs_models_rows_and_dead_letters() -> None:
    seen = eventually(lambda: (found := figures())["status"] and found, "the manager answers")
    (job,) = seen["jobs"]
    assert (job["command"], job["total"], job["failed"]) == ("run", 5001, 1)
    assert [letter["error"] for letter in seen["dead_letters"]] == ["InvalidRequest"]
    assert seen["rows"][-1]["generated_tokens"] == 5
    assert seen["ttft"] > 0
    assert seen["status"]["models"][0]["state"] == "ready"
    assert "question" not in json.dumps(seen)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("flags", [["--once"], []])
def test_without_a_terminal_one_frame_is_printed_as_text(flags: list[str]) -> None:
    ended = subprocess.run(
        [*TOP, *flags], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "120"}
    )
    assert ended.stderr == ""
    assert "\x1b" not in ended.stdout
    assert "of 5,001" in ended.stdout
    assert "InvalidRequest" in ended.stdout


def quit_by(key: str) -> Any:
    return lambda top: top.type(key)


def end_by(number: signal.Signals) -> Any:
    return lambda top: top.process.send_signal(number)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "end",
    [quit_by("q"), quit_by("\x03"), end_by(signal.SIGINT), end_by(signal.SIGTERM)],
    ids=["q", "Ctrl-C", "SIGINT", "SIGTERM"],
)
def test_on_a_terminal_frames_follow_until_it_is_ended_and_the_screen_is_as_before(end: Any) -> None:
    with on_terminal([*TOP, "--interval", "0.1"], whole=True) as top:
        eventually(lambda: unstyled(top.shown()).count("of 5,001") >= 3, "three frames")
        end(top)
        shown = top.ended(60)
    assert top.process.returncode == 0
    assert shown.startswith(ALTERNATE)
    assert BACK in shown
    assert "Traceback" not in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor is seen again"


@pytest.mark.usefixtures("machine")
def test_a_key_that_means_nothing_ends_nothing_and_is_not_echoed() -> None:
    with on_terminal([*TOP, "--interval", "0.1"], whole=True) as top:
        eventually(lambda: "of 5,001" in unstyled(top.shown()))
        top.type("zzz")
        before = len(top.shown())
        eventually(lambda: unstyled(top.shown()[before:]).count("of 5,001") >= 2)
        top.type("Q")
        assert "zzz" not in top.ended(60)
    assert top.process.returncode == 0


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("columns", [20, 40, 79])
def test_a_narrow_terminal_has_whole_lines(columns: int) -> None:
    with on_terminal([*TOP, "--interval", "0.1"], columns=columns, whole=True) as top:
        eventually(lambda: unstyled(top.shown()).count("dead letters") >= 2)
        top.type("q")
        lines = unstyled(top.ended(60)).replace("\r", "\n").split("\n")
    assert max(map(len, lines)) <= columns


def test_a_terminal_that_can_do_nothing_gets_frames_as_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path / "rt"))
    with on_terminal([*TOP, "--interval", "0.1"], whole=True, term="dumb") as top:
        eventually(lambda: top.shown().count("no manager runs") >= 2, "two frames")
        top.type("q")
        assert "\x1b" not in top.ended(60)
    assert top.process.returncode == 0


def test_no_colour_is_shown_where_none_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.setenv("NO_COLOR", "1")
    with on_terminal([*TOP, "--interval", "0.1"], whole=True) as top:
        eventually(lambda: "no manager runs" in top.shown())
        top.type("q")
        shown = top.ended(60)
    assert not re.search(r"\x1b\[(?:\d+;)*[34]\d", shown)
    assert top.process.returncode == 0


@pytest.mark.slow
def test_a_manager_that_is_killed_is_told_and_the_next_one_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "rt"
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    command = [
        *job_command("run", tmp_path / "a.txt", tmp_path / "out/c"),
        "--backend=fake",
        "--linger=300",
        "--overwrite",
    ]
    with on_terminal([*TOP, "--interval", "0.1"], whole=True) as top:

        def tells(text: str) -> None:
            before = len(top.shown())
            eventually(lambda: text in unstyled(top.shown()[before:]), text)

        try:
            tells("no manager runs")
            assert run(command).returncode == 0
            tells("2 done")
            status = status_of(runtime)
            assert status is not None
            os.kill(status.pid, signal.SIGKILL)
            tells("no manager runs")
            assert run(command).returncode == 0
            tells("2 done")
        finally:
            stop_models(runtime)
    assert isinstance(top, OnTerminal)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_web_serves_the_page_and_its_feed_on_this_machine_alone(number: signal.Signals) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started([*TOP, "--web", "--port", "0"], **pipes) as process:
        assert process.stdout is not None
        url = process.stdout.readline().rpartition(" ")[2].strip()
        assert url.startswith("http://127.0.0.1:")
        assert "Try a prompt" in httpx.get(f"{url}/").text
        assert httpx.get(f"{url}/", headers={"host": "rebound.example"}).status_code == 403
        with httpx.stream("GET", f"{url}/events", timeout=60) as answer:
            lines = answer.iter_lines()
            frame = json.loads(next(lines).removeprefix("data: "))
            assert frame["figures"]["server"] is None
            assert frame["figures"]["jobs"][0]["total"] == 5001
            process.send_signal(number)
            assert "data: [DONE]" in [*lines]
        assert (*process.communicate(timeout=60), process.returncode) == ("", "", 0)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--once", "--json"], "millrace: --json and --once exclude each other: leave one out\n"),
        (["--interval", "0"], "--interval 0: takes 0.1 to 3600 seconds"),
        (["--web", "--port", "70000"], "--port 70000: takes 0 (a free one) to 65535"),
    ],
)
def test_wrong_flags_are_told_in_one_sentence(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["top", *flags]) == 2
    assert told in capsys.readouterr().err


def test_it_imports_neither_beam_nor_torch_nor_the_servers_packages() -> None:
    program = (
        "import sys\n"
        "import millrace.pipelines.commands.top\n"
        "heavy = ('apache_beam', 'torch', 'transformers', 'uvicorn', 'starlette', 'prometheus_client')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"

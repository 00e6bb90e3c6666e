"""The first streams of the page, in as many processes as it has terminals: its own commands and what it prints."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.servers.prism import prism
from tests.servers.processes import free_port, listens
from tests.waiting import eventually

pytestmark = [pytest.mark.runners, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/streams.md").read_text(encoding="utf-8")
_WITHIN = 300


def block(containing: str) -> str:
    """The page's block of code with those words."""
    (found,) = (code for code in re.findall(r"```\w+\n(.*?)```", PAGE, re.DOTALL) if containing in code)
    return str(found)


@contextmanager
def terminal(command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command of the page in the background, until Ctrl-C; `stderr` has what the last command says."""
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": f"{folder}/rt", "PYTHONPATH": str(ROOT)}
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
        )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_WITHIN)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    yield tmp_path
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": f"{tmp_path}/rt"}
    subprocess.run([sys.executable, "-m", "millrace", "stop"], env=environment, capture_output=True, check=True)


def job_of(code: str) -> str:
    """The command of a job, on the Prism of the tests."""
    command = code[code.index(".venv/bin/millrace run") :].replace("\\\n", " ").strip()
    return command.replace("~/go/bin/prism", str(prism()))


def interrupted(job: subprocess.Popen[str], folder: Path) -> str:
    """What a job says at Ctrl-C."""
    job.send_signal(signal.SIGINT)
    assert job.wait(_WITHIN) == 130
    return (folder / "stderr").read_text()


def test_prompts_of_a_topic_are_answered_as_the_page_prints(folder: Path) -> None:
    port = str(free_port())
    broker, job, client = (
        block(words).replace("9092", port)
        for words in ("tests.servers.kafka 9092", "go install", "from confluent_kafka import")
    )
    with ExitStack() as terminals:
        terminals.enter_context(terminal(broker.strip(), folder))
        eventually(lambda: listens(int(port)), "the broker")
        running = terminals.enter_context(terminal(job_of(job), folder))
        eventually(lambda: "reading kafka:" in (folder / "stderr").read_text(), "the job reads")
        shown = subprocess.run(
            [sys.executable, "-c", client], capture_output=True, text=True, timeout=_WITHIN, check=True
        )
        (printed,) = re.findall(r"prints, in any order,\n\n```text\n(.*?)```", PAGE, re.DOTALL)
        assert numbered(shown.stdout) == numbered(printed)
        assert "interrupted; the next job on kafka:" in interrupted(running, folder)


def numbered(printed: str) -> list[str]:
    """The lines in one order, without the place that a message happened to come to."""
    return sorted(re.sub(r"prompts/\d@\d", "prompts/P@O", line) for line in printed.splitlines())


def test_files_of_a_folder_are_answered(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in/a.jsonl").write_text('{"id": "a", "prompt": "What is the capital of Mexico?"}\n')
    with terminal(job_of(block("watch:in/*.jsonl")), folder) as running:
        eventually(lambda: any("Mexico City" in file.read_text() for file in folder.glob("out/answers-*")), "an answer")
        interrupted(running, folder)

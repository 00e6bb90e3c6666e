"""A job in one container, its manager in another: what is killed and what is cut costs no row and doubles none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.manager_key import make_key
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.containers import Container, containers
from tests.model_manager.manager.staying_manager import ROOT, StayingManager
from tests.waiting import eventually

ROWS = 1000
TOKENS = 12


def prompts() -> dict[str, str]:
    return {f"row {index}": f"{index} and a word" for index in range(ROWS)}


def written(container: Container) -> dict[str, list[str]]:
    """The texts of each row that the job has written."""
    texts: dict[str, list[str]] = {}
    for file in [*container.tmp.glob("out*/**/*.jsonl"), *container.tmp.glob("out*.jsonl")]:
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                texts.setdefault(row["id"], []).append(row["text"])
    return texts


def undisturbed(runtime: Path) -> dict[str, str]:
    """The texts that a manager of this machine gives."""
    config, params = ModelConfig(backend="fake"), SamplingParams(max_tokens=TOKENS)
    with EngineClient.open(config, manager=ManagerConfig(linger=0), runtime=runtime) as client:
        futures = {name: client.submit(text, params, request_id=name) for name, text in prompts().items()}
        return {name: future.result().text for name, future in futures.items()}


@pytest.mark.slow
def test_a_job_goes_on_over_a_killed_manager_and_a_cut_cable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(tmp_path / "run")
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.06")
    with containers() as (here, there):
        for each in (here, there):
            make_key(each.tmp / "manager.pem")
        (here.tmp / "manager.pem").write_bytes((there.tmp / "manager.pem").read_bytes())
        rows = "".join(json.dumps({"id": name, "prompt": text}) + "\n" for name, text in prompts().items())
        (here.tmp / "rows.jsonl").write_text(rows)
        key = Path("/tmp/manager.pem")
        with StayingManager(key, there.host, MANAGER_COMMAND, there.inside) as manager, job(here, manager) as running:
            eventually(lambda: len(written(here)) > 20, "rows")
            manager.kill()
            before = len(written(here))
            manager.start()
            eventually(lambda: len(written(here)) > before + 20, "rows of the next manager")
            there.run("ip", "link", "set", "cable", "down")
            assert len(written(here)) < ROWS, "it ended too soon for this test"
            for each in (here, there):
                eventually(lambda end=each: connections(end) == 0, "the end of a connection that nobody answers")  # type: ignore[misc]
            there.run("ip", "link", "set", "cable", "up")
            cut = len(written(here))
            eventually(lambda: len(written(here)) > cut, "rows over the cable")
            monkeypatch.delenv("MILLRACE_FAKE_STEP_SECONDS")  # the rest need not last
            manager.kill()
            manager.start()
            assert running.wait() == 0
        assert written(here) == {name: [text] for name, text in expected.items()}


def connections(container: Container) -> int:
    """Established to the manager's network, as the container's kernel has it."""
    lines = Path(f"/proc/{container.pid}/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[3] == "01" for line in lines)


def job(container: Container, manager: StayingManager) -> subprocess.Popen[bytes]:
    flags = {
        "input": "/tmp/rows.jsonl",
        "output": "/tmp/out",
        "backend": "fake",
        "max_tokens": TOKENS,
        "max_num_seqs": 12,
        "manager": manager.address,
        "manager_key_file": manager.key,
        "heartbeat": 0.2,
        "hang_timeout": 2,
    }
    command = [
        *container.inside,
        sys.executable,
        "-m",
        "millrace",
        "run",
        *(f"--{name}={value}" for name, value in flags.items()),
    ]
    return subprocess.Popen([*command, "--no-report", "--quiet"], cwd=ROOT)

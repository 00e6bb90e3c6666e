"""Jobs in containers: what they ask, what they have written, and what they should have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.containers import Container
from tests.model_manager.manager.staying_manager import ROOT, StayingManager

ROWS = 1000
TOKENS = 12


def prompts(rows: int = ROWS) -> dict[str, str]:
    return {f"row {index}": f"{index} and a word" for index in range(rows)}


def written(container: Container) -> dict[str, list[str]]:
    """The texts of each row that the job has written."""
    texts: dict[str, list[str]] = {}
    for file in [*container.tmp.glob("out*/**/*.jsonl"), *container.tmp.glob("out*.jsonl")]:
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                texts.setdefault(row["id"], []).append(row["text"])
    return texts


def undisturbed(runtime: Path, rows: int = ROWS) -> dict[str, str]:
    """The texts that a manager of this machine gives."""
    config, params = ModelConfig(backend="fake"), SamplingParams(max_tokens=TOKENS)
    with EngineClient.open(config, manager=ManagerConfig(linger=0), runtime=runtime) as client:
        futures = {name: client.submit(text, params, request_id=name) for name, text in prompts(rows).items()}
        return {name: future.result().text for name, future in futures.items()}


def ask(container: Container, rows: int = ROWS) -> None:
    """Write the job's input."""
    lines = "".join(json.dumps({"id": name, "prompt": text}) + "\n" for name, text in prompts(rows).items())
    (container.tmp / "rows.jsonl").write_text(lines)


def job(
    container: Container, manager: StayingManager | None = None, runtime: Path | None = None
) -> subprocess.Popen[bytes]:
    """`millrace run` in the container: by a manager at an address, or by one that is elected in a runtime folder."""
    flags = {
        "input": "/tmp/rows.jsonl",
        "output": "/tmp/out",
        "backend": "fake",
        "max_tokens": TOKENS,
        "max_num_seqs": 12,
        "heartbeat": 0.2,
        "hang_timeout": 2,
    }
    if manager is not None:
        flags |= {"manager": manager.address, "manager_key_file": manager.key}
    command = [
        *container.inside,
        sys.executable,
        "-m",
        "millrace",
        "run",
        *(f"--{name}={value}" for name, value in flags.items()),
    ]
    env: Mapping[str, str] = os.environ if runtime is None else os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime)}
    return subprocess.Popen([*command, "--no-report", "--quiet"], cwd=ROOT, env=env)

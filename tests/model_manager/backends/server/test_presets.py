"""Presets whose servers need a GPU: their commands start what takes documented arguments and gives documented answers.

In the server's place there is a program of its name on the PATH (documented_server.py).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends import documented_server
from tests.model_manager.backends.endpoint.test_dialects import GOLDEN, NEED_A_GPU
from tests.model_manager.backends.stand_in_main import runs
from tests.model_manager.manager.machine import PATIENCE, Machine, machine
from tests.servers.processes import free_port
from tests.waiting import eventually

__all__ = ["machine"]

MODEL = "/models/the model"
EXAMPLES = {each["preset"]: each for each in (json.loads(path.read_bytes()) for path in GOLDEN) if "preset" in each}
"""The last documented example of each preset."""


@dataclass(frozen=True)
class Documented:
    """How a server is started, from its own documentation."""

    program: str
    words: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Options with a value: the first one says the host, the second one the port."""
    switches: tuple[str, ...] = ()
    health: str = "/health"


SERVERS = {
    "aphrodite": Documented("aphrodite", ("run", MODEL), ("--host", "--port", "--tensor-parallel-size")),
    "sglang": Documented("python", ("-m", "sglang.launch_server"), ("--host", "--port", "--model-path", "--tp")),
    "lmdeploy": Documented("lmdeploy", ("serve", "api_server", MODEL), ("--server-name", "--server-port", "--tp")),
    "trtllm": Documented("trtllm-serve", (MODEL,), ("--host", "--port", "--tp_size")),
    "mii": Documented(
        "python", ("-m", "mii.entrypoints.openai_api_server"), ("--host", "--port", "--model", "--tensor-parallel")
    ),
    "powerinfer": Documented(
        "server",
        flags=("--host", "--port", "--model", "--ctx-size", "--parallel"),
        switches=("--cont-batching",),
        health="/props",
    ),
    "tgi": Documented("text-generation-launcher", flags=("--hostname", "--port", "--model-id", "--num-shard")),
    "ray": Documented("serve", ("run", MODEL), health="/-/healthz"),
    "triton": Documented(
        "tritonserver",
        flags=("--http-address", "--http-port", "--model-repository", "--allow-grpc", "--allow-metrics"),
        health="/v2/health/ready",
    ),
}


def installed(server: Documented, example: dict[str, Any], port: int, folder: Path) -> Path:
    """The folder of a program of the server's name; beside it stands what the program writes."""
    model = f"/v2/models/{example['model']}"
    about: dict[str, Any] = {"/v1/models": {"object": "list", "data": [{"id": example["model"], "object": "model"}]}}
    about |= {f"{model}/ready": {}, model: example.get("metadata", {}), "/info": {"max_total_tokens": 4096}}
    fields: dict[str, Any] = {"words": server.words, "flags": server.flags, "switches": server.switches, "port": port}
    fields |= {"health": server.health, "about": about, "example": example}
    (folder / "server.json").write_text(json.dumps(fields))
    programs = folder / "programs"
    programs.mkdir()
    program = programs / server.program
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {documented_server.__file__} {folder}/server.json "$@"\n')
    program.chmod(0o755)
    return programs


@pytest.mark.parametrize("preset", sorted(SERVERS))
def test_a_presets_command_starts_a_server_that_answers_and_ends_with_the_job(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    server, example = SERVERS[preset], EXAMPLES[preset]
    own_port = {} if server.flags else {"port": free_port()}
    programs = installed(server, example, own_port.get("port", 0), tmp_path)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    options = {"preset": preset, "served_model": example["model"], **example["options"], **own_port}
    client = machine.open(command=MANAGER_COMMAND, model=MODEL, backend="server", backend_options=options)
    said = example["request"].get("messages") or example["request"]["text"]
    params = SamplingParams.parse(example["request"]["params"])
    output = client.submit(said, params, request_id="row").result(PATIENCE)
    assert (output.text, output.finish_reason.value) == (example["answer"]["text"], example["answer"]["finish_reason"])
    bodies = (tmp_path / "server.bodies").read_text().splitlines()
    assert [json.loads(each) for each in bodies] == [example["body"]]
    pid = int((tmp_path / "server.pid").read_text())
    assert MODEL in psutil.Process(pid).cmdline()
    client.close()
    eventually(lambda: not runs(pid), "the end of the server")


def test_each_preset_that_needs_a_gpu_is_among_them() -> None:
    assert SERVERS.keys() == NEED_A_GPU

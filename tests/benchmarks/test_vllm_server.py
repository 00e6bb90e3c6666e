"""Servers of vLLM as sides: all that one has started ends with it."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from benchmarks.sides import vllm_server
from benchmarks.sides.vllm_server import end, leading_groups
from tests.waiting import eventually

DEAF = "trap '' TERM; sleep 600 & wait"
"""A server whose engine, and which itself, does not hear SIGTERM."""


@pytest.mark.parametrize("command", ["sleep 600 & wait", DEAF])
def test_a_server_ends_with_the_processes_of_its_group(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "_END_SECONDS", 0.5)
    with leading_groups():
        server = subprocess.Popen(["sh", "-c", command])
    engine: psutil.Process = eventually(lambda: next(iter(psutil.Process(server.pid).children()), None), "an engine")
    end(server)
    assert server.poll() is not None
    eventually(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, "the end of the engine")


def test_a_server_that_has_ended_is_no_fault() -> None:
    with leading_groups():
        server = subprocess.Popen(["true"])
    server.wait()
    end(server)

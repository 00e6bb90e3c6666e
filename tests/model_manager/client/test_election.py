"""A manager that ends while it starts: a killed one is started again, one that fails is told of at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.model_manager.client.election import Election
from millrace.model_manager.wire.config import ManagerConfig
from millrace.model_manager.wire.errors import ManagerUnavailable
from millrace.model_manager.wire.runtime import RuntimeDir
from tests.model_manager.manager.machine import Machine, kill
from tests.waiting import eventually


def test_a_manager_that_is_killed_while_it_starts_is_started_again(machine: Machine) -> None:
    def kill_the_first() -> int:
        first: int = eventually(machine.processes)[0].pid
        assert not (machine.runtime / "manager.sock").exists(), "it does not listen yet"
        kill(first)
        return first

    with ThreadPoolExecutor(1) as beside:
        killed = beside.submit(kill_the_first)
        machine.open()
    assert machine.status().pid != killed.result()


@pytest.mark.parametrize(
    ("end", "told", "starts"),
    [
        ("raise SystemExit('linger=-1: takes a positive number')", "code 1 .*: linger=-1: takes a positive", 1),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL at each of 5 starts, .* memory", 5),
    ],
    ids=["fails", "killed"],
)
def test_a_manager_that_fails_is_told_of_at_once_and_one_that_is_killed_after_some_starts(
    tmp_path: Path, end: str, told: str, starts: int
) -> None:
    program = f"import os; open({str(tmp_path / 'starts')!r}, 'a').write('x'); {end}"
    election = Election(RuntimeDir(tmp_path / "run"), ManagerConfig(), command=("-c", program))
    with pytest.raises(ManagerUnavailable, match=told):
        election.connect(threading.Event())
    assert len((tmp_path / "starts").read_text()) == starts
    assert not (tmp_path / "run").exists(), "swept"

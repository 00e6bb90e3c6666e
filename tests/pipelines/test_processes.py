"""What `millrace ps` says of a status."""

import pytest

from model_manager.wire.messages import EngineStats, ModelStatus, Status
from pipelines.processes import status_lines


@pytest.mark.parametrize(("pids", "shown"), [([], "pid -, "), ([7], "pid 7, "), ([7, 8, 9], "pids 7, 8, 9, ")])
def test_all_engines_of_a_model_are_shown(pids: list[int], shown: str) -> None:
    model = ModelStatus("key", "org/m", "ready", pids, 1, 0, 0, None, EngineStats())
    lines = [*status_lines(Status(1, 60.0, [model], [], []))]
    assert lines[1].startswith(f"model    org/m: ready, {shown}1 clients, ")

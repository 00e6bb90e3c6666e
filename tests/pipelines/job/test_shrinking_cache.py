"""Two models with work whose KV caches do not fit in memory at full size: real engines, both in memory at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import read_status
from millrace.model_manager.store import resolve
from millrace.model_manager.store.memory import memory_need
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.pipelines.commands.processes import status_lines
from tests.waiting import eventually

SETTINGS = ManagerConfig(linger=0.1, heartbeat=0.2, hang_timeout=60.0)
PATIENCE = 300.0
ROWS = 60


def status() -> Status:
    found: Status = eventually(read_status, "a manager")
    return found


def submit(client: EngineClient, job: str) -> Callable[[], list[list[int]]]:
    """Greedy and seeded rows; the call gives their tokens."""
    futures = [
        client.submit(
            [number % 7 + 5] * (20 + 5 * number % 90),
            SamplingParams(max_tokens=60, ignore_eos=True, temperature=float(number % 2), seed=number),
            request_id=f"{job}-{number}",
        )
        for number in range(ROWS)
    ]
    return lambda: [future.result(PATIENCE).token_ids for future in futures]


@pytest.mark.usefixtures("runtime")
def test_both_models_work_at_once_and_answer_what_they_answer_alone(tmp_path: Path) -> None:
    first, second = (
        ModelConfig(model=str(tmp_path / name), dtype="float32", max_num_seqs=32, num_threads=1) for name in "ab"
    )
    for config in (first, second):
        shutil.copytree(resolve(EMBEDDED_MODEL), config.model)
    with EngineClient.open(first, manager=SETTINGS, job="alone", chat=False) as client:
        alone = submit(client, "alone")()
    eventually(lambda: read_status() is None, "the manager's end")
    need = memory_need(first, first.model)
    assert need.most_cache > 2 * need.least_cache
    tight = msgspec.structs.replace(SETTINGS, memory_gib=(2 * need.least + need.least_cache // 2) / 2**30)
    with EngineClient.open(first, manager=tight, job="a", chat=False) as one:
        of_first = submit(one, "a")
        before = status().models[0]
        with EngineClient.open(second, manager=tight, job="b", chat=False) as other:
            assert status().models[0].outstanding, "the second is loaded while the first works"
            assert submit(other, "b")() == alone
            assert of_first() == alone
            after = status().models
            lines = [*status_lines(status())]
    assert [model.loads for model in after] == [1, 1]
    assert [len(model.pids) for model in after] == [1, 1]
    assert [model.restarts for model in after] == [0, 0]
    assert before.info is not None
    assert after[0].stats.blocks_total < before.info.num_blocks
    assert f"/{after[0].stats.blocks_total} blocks" in lines[1]

"""An answer, and an error, say what held their request up: deaths of engines, and managers that were lost."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from millrace.model_manager.wire.errors import EngineKiller
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.client.test_recovery import expect_whole, submit
from tests.model_manager.manager.machine import PATIENCE, SETTINGS, Machine, kill
from tests.model_manager.manager.stand_in_engine import DIE
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")


def test_an_answer_tells_of_its_engines_death_and_of_its_managers(machine: Machine) -> None:
    client = machine.open()
    undisturbed = submit(client, 1)["0"].result(PATIENCE)
    assert (undisturbed.setbacks, undisturbed.recomputed_tokens) == ([], 0)
    with machine.held():
        futures = {name: future for name, future in submit(client, 8).items() if name != "0"}
        eventually(lambda: machine.model_status().stats.steps > len(undisturbed.token_ids) + 5)
        kill(machine.engine_pid())
    expect_whole(futures)
    told = {each.what for future in futures.values() for each in future.result().setbacks}
    assert told == {"engine_died"}
    outputs = [future.result() for future in futures.values()]
    assert max(output.recomputed_tokens for output in outputs) > 3, "one had tokens, and its prompt, as the engine died"
    assert all(output.recomputed_tokens <= 3 + len(output.token_ids) for output in outputs)
    with machine.held():
        params, pending = SamplingParams(max_tokens=30), client._session._ledger._pending
        later = [client.submit([1, 30, n], params, request_id=f"l{n}") for n in range(8)]
        eventually(lambda: any(each.computed_tokens for each in list(pending.values())))
        kill(machine.status().pid)
    outputs = [future.result(PATIENCE) for future in later]
    assert all([each.what for each in output.setbacks] == ["manager_lost"] for output in outputs)
    assert max(output.recomputed_tokens for output in outputs) > 3, "one had tokens, and its prompt, as it was lost"
    assert all(output.recomputed_tokens <= 3 + len(output.token_ids) for output in outputs)
    assert all(each.at >= 0 for output in outputs for each in output.setbacks)


def test_an_engine_killers_error_counts_its_engines(machine: Machine) -> None:
    settings = replace(SETTINGS, max_deaths_per_request=1)
    future = machine.open(settings).submit([DIE, 1], SamplingParams(max_tokens=1), request_id="killer")
    error = future.exception(PATIENCE)
    assert isinstance(error, EngineKiller)
    assert [each.what for each in error.setbacks] == ["engine_died", "engine_died"]

"""Jobs that share a model are told of each other's settings."""

from __future__ import annotations

import logging

import msgspec
import pytest

from millrace.model_manager.manager.outbox import Effect, Start, ToClient
from millrace.model_manager.manager.router import Router
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.messages import ModelReady, OpenModel
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.shared_settings import UnmetSetting
from tests.model_manager.manager.machine import PATIENCE, Machine, kill
from tests.model_manager.manager.machine import SETTINGS as OF_MANAGER
from tests.model_manager.manager.router_world import INFO, SETTINGS
from tests.model_manager.manager.stand_in_engine import ANSWER

# ── the router ───────────────────────────────────────────────────────────────────────────────────────────────────────


def opened(router: Router, client: int, config: ModelConfig) -> list[Effect]:
    router.connect(client, observer=False)
    router.open_model(client, OpenModel(config, "/"), 0.0)
    return router.effects(0.0)


def ready(effects: list[Effect]) -> dict[int, list[UnmetSetting]]:
    return {
        effect.client: effect.message.unmet
        for effect in effects
        if isinstance(effect, ToClient) and isinstance(effect.message, ModelReady)
    }


def test_each_client_is_told_its_own_differences_before_and_after_the_model_is_loaded() -> None:
    router = Router(SETTINGS, 0.0)
    base = ModelConfig(backend="fake", max_num_seqs=4)
    opened(router, 1, base)
    opened(router, 2, ModelConfig(backend="fake", max_num_seqs=8))
    router.model(base.key).ready(0, INFO, 0.0)
    assert ready(router.effects(0.0)) == {1: [], 2: [UnmetSetting("max_num_seqs", 8, 4)]}
    late = opened(router, 3, ModelConfig(backend="fake", num_threads=3))
    assert ready(late) == {3: [UnmetSetting("num_threads", 3, 1)]}  # the machine has one core
    assert ready(opened(router, 4, ModelConfig(backend="fake"))) == {4: []}


def test_engines_that_the_machine_had_places_for_count_as_asked_for() -> None:
    router = Router(SETTINGS, 0.0, gpus=("0", "1"))
    opened(router, 1, ModelConfig())
    router.model(ModelConfig().key).ready(0, INFO, 0.0)
    router.effects(0.0)
    assert ready(opened(router, 2, ModelConfig(num_engines=2))) == {2: []}
    assert ready(opened(router, 3, ModelConfig(num_engines=1))) == {3: [UnmetSetting("num_engines", 1, 2)]}


@pytest.mark.parametrize("fails", [True, False])
def test_a_model_that_nobody_uses_and_no_engine_runs_is_loaded_as_the_next_client_asks(fails: bool) -> None:
    router = Router(SETTINGS, 0.0)
    first, second = (ModelConfig(backend="fake", max_num_seqs=number) for number in (4, 8))
    opened(router, 1, first)
    router.model(first.key).ready(0, INFO, 0.0)
    if fails:
        router.stop_model(None)
    else:
        router.disconnect(1, 0.0)
        router.tick(SETTINGS.linger + 1)
    router.effects(0.0)
    (start,) = [effect for effect in opened(router, 2, second) if isinstance(effect, Start)]
    assert start.config == msgspec.structs.replace(second, num_threads=1)
    router.check_integrity()


# ── real processes ───────────────────────────────────────────────────────────────────────────────────────────────────


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


def test_a_client_warns_once_of_the_settings_that_it_does_not_get(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.open(max_num_seqs=8)
    assert warnings(caplog) == []
    for _ in range(2):
        machine.open(max_num_seqs=16, num_engines=2, speculation="prompt_lookup").close()
    (told,) = warnings(caplog)
    assert told.startswith(f"{machine.model} is shared")
    for name, held, asked in (("max_num_seqs", 8, 16), ("num_engines", 1, 2), ("speculation", "off", "prompt_lookup")):
        assert f"{name}={held} (asked for: {asked})" in told


def test_settings_of_the_manager_are_told_too(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.open()
    client = machine.open(ManagerConfig(hang_timeout=30.0), max_num_seqs=16)
    assert client.unmet == [
        UnmetSetting("max_num_seqs", 16, 8),
        UnmetSetting("hang_timeout", 30.0, OF_MANAGER.hang_timeout),
    ]
    of_manager, of_model = warnings(caplog)
    assert "the manager is shared" in of_manager
    assert f"hang_timeout={OF_MANAGER.hang_timeout} (asked for: 30.0)" in of_manager
    assert "hang_timeout" not in of_model


def test_who_loads_a_model_first_gets_what_it_asks_for_and_the_default_asks_for_nothing(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.open(max_num_seqs=8, num_engines=2, prefix_caching=False, num_threads=1)
    machine.open()
    assert warnings(caplog) == []


def test_a_client_is_told_too_when_another_loads_the_model_first_after_a_managers_death(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    first = machine.open(max_num_seqs=16)
    kill(machine.status().pid)
    machine.open(max_num_seqs=8)
    assert warnings(caplog) == []
    first.submit([ANSWER, 3], SamplingParams(), request_id="a").result(PATIENCE)
    (told,) = warnings(caplog)
    assert "max_num_seqs=8 (asked for: 16)" in told

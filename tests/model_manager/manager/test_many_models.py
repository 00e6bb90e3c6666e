"""Several models and less memory than they take together: each is loaded in its turn, and all requests are answered."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.store.memory import memory_need
from millrace.model_manager.wire.config import ManagerConfig
from millrace.model_manager.wire.errors import ModelDoesNotFit
from millrace.model_manager.wire.messages import OpenModel
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.crowd import A, B, Crowd
from tests.model_manager.manager.machine import PATIENCE, SETTINGS, Machine
from tests.model_manager.manager.stand_in_engine import ANSWER, answer

# ── the router ───────────────────────────────────────────────────────────────────────────────────────────────────────


def working(name: str) -> Crowd:
    """The first model is loaded and has a request."""
    crowd = Crowd()
    crowd.open(A)
    crowd.load(A)
    crowd.submit(A, name)
    return crowd


def test_a_model_waits_until_another_has_finished_its_requests_and_status_says_so() -> None:
    crowd = working("row")
    crowd.open(B)
    crowd.pass_time(1)
    assert (crowd.status(B).state, crowd.running) == ("waiting", {A.key})
    assert crowd.status(B).waits_for.endswith("in memory: org/a")
    assert crowd.warned == []
    crowd.pass_time(10)
    assert crowd.warned == [B.key]
    crowd.finish(A, "row")
    crowd.pass_time(1)
    assert crowd.running == {B.key}
    assert (crowd.status(A).state, crowd.status(B).state) == ("idle", "loading")


def test_a_model_that_is_never_without_work_gives_way_after_its_turn_and_comes_back() -> None:
    crowd = working("early")
    crowd.open(B)
    crowd.pass_time(30)
    crowd.pass_time(1)
    crowd.submit(A, "late")
    assert crowd.given[A.key] == ["early"], "no further requests while it leaves"
    crowd.finish(A, "early")
    crowd.pass_time(1)
    assert crowd.running == {B.key}
    assert crowd.status(A).state == "waiting"
    crowd.load(B)
    crowd.submit(B, "b")
    crowd.finish(B, "b")
    crowd.pass_time(1)
    crowd.load(A)
    assert crowd.given[A.key] == ["late"]


def test_requests_that_come_without_a_pause_do_not_hold_a_model_that_leaves() -> None:
    crowd = working("early")
    crowd.open(B)
    crowd.pass_time(30)
    crowd.pass_time(1)
    crowd.finish(A, "early")
    for number in range(5):
        crowd.submit(A, f"late {number}")
        crowd.pass_time(0.1)
    assert crowd.running == {B.key}


@pytest.mark.parametrize(
    ("weight", "models", "other", "turn"),
    [
        (1.0, 1, 1.0, 10),
        (3.0, 1, 1.0, 30),
        (3.0, 2, 1.0, 15),
        (0.5, 1, 1.0, 10),
        (1000.0, 1, 1000.0, 10),
        (0.001, 1, 0.001, 10),
        (1000.0, 1, 0.001, 100),
    ],
)
def test_a_turn_is_longer_by_as_much_as_its_job_weighs_more_for_each_of_its_models(
    weight: float, models: int, other: float, turn: float
) -> None:
    """The job of weight `other` opens one model; the other job has requests for as many as `models`."""
    crowd, ours = Crowd(), (A, msgspec.structs.replace(A, model="org/c"))[:models]
    crowd.router.connect(2, observer=False)
    for config in ours:
        crowd.router.open_model(1, OpenModel(config, "/", ManagerConfig(weight=weight)), crowd.now)
    crowd.settle()
    crowd.load(A)
    for config in ours:
        crowd.submit(config, f"first of {config.model}")
    crowd.router.open_model(2, OpenModel(B, "/", ManagerConfig(weight=other)), crowd.now)
    crowd.pass_time(turn - 0.1)
    crowd.submit(A, "before the turn's end")
    assert "before the turn's end" in crowd.given[A.key]
    crowd.pass_time(0.2)
    crowd.pass_time(0.1)
    crowd.submit(A, "after it")
    assert "after it" not in crowd.given[A.key]


def test_a_model_that_was_to_leave_goes_on_when_who_waited_is_gone() -> None:
    crowd = working("early")
    crowd.router.connect(2, observer=False)
    crowd.router.open_model(2, OpenModel(B, "/"), crowd.now)
    crowd.pass_time(30)
    crowd.pass_time(1)
    crowd.submit(A, "late")
    crowd.router.disconnect(2, crowd.now)
    crowd.pass_time(1)
    assert crowd.given[A.key] == ["early", "late"]


def test_clients_may_send_more_requests_while_not_all_models_fit() -> None:
    crowd = Crowd()
    crowd.open(A)
    crowd.load(A)
    assert crowd.limits == {A.key: 8}
    crowd.open(B)
    assert crowd.limits == {A.key: 64}


# ── real processes ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folders(machine: Machine) -> list[Path]:
    """Folders of four models."""
    made = [machine.folder / name for name in "abcd"]
    for folder in made:
        shutil.copytree(machine.model, folder)
    return made


def room_for(count: int, machine: Machine, **more: float) -> ManagerConfig:
    """Settings of a manager whose memory is enough for so many of the models."""
    need = memory_need(machine.config(), str(machine.model)).least
    return msgspec.structs.replace(SETTINGS, memory_gib=(count + 0.5) * need / 2**30, **more)


def tokens(client: EngineClient, name: str) -> list[int]:
    return client.submit([ANSWER, 3, 7], SamplingParams(), request_id=name).result(PATIENCE).token_ids


def test_a_model_makes_room_for_another_and_comes_back_with_its_next_request(
    machine: Machine, folders: list[Path]
) -> None:
    settings = room_for(1, machine)
    first = machine.open(settings, model=str(folders[0]))
    assert tokens(first, "one") == answer([ANSWER, 3, 7], 3)
    second = machine.open(settings, model=str(folders[1]))
    assert tokens(second, "two") == answer([ANSWER, 3, 7], 3)
    assert [len(model.pids) for model in machine.status().models] == [0, 1]
    assert tokens(first, "three") == answer([ANSWER, 3, 7], 3)
    assert [model.loads for model in machine.status().models] == [2, 1]


def test_a_later_manager_opens_a_model_that_was_loaded_before_without_a_load(
    machine: Machine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(machine.folder / "cache"))
    with machine.open(model=str(folders[1])) as once:
        found = once.info
    machine.wait_until_gone()
    settings = room_for(1, machine)
    first = machine.open(settings, model=str(folders[0]))
    (folders[0] / "hold").touch()
    working = first.submit([ANSWER, 40, 1], SamplingParams(), request_id="long")
    second = machine.open(settings, model=str(folders[1]), on_demand=True)
    assert second.info == found
    assert not working.done()
    assert [model.loads for model in machine.status().models] == [1, 0]
    (folders[0] / "hold").unlink()
    assert tokens(second, "two") == answer([ANSWER, 3, 7], 3)
    assert [model.loads for model in machine.status().models] == [1, 1]


def test_shuffled_requests_to_more_models_than_fit_are_all_answered_and_each_model_is_loaded_a_few_times(
    machine: Machine, folders: list[Path]
) -> None:
    settings = room_for(2, machine)
    clients = [machine.open(settings, model=str(folder)) for folder in folders]
    rows = [number % len(clients) for number in range(400)]
    random.Random(7).shuffle(rows)
    futures = [
        clients[which].submit([ANSWER, 2, number % 50], SamplingParams(), request_id=f"row {number}")
        for number, which in enumerate(rows)
    ]
    for number, future in enumerate(futures):
        assert future.result(PATIENCE).token_ids == answer([ANSWER, 2, number % 50], 2)
    assert all(model.loads <= 8 for model in machine.status().models)
    assert sum(bool(model.pids) for model in machine.status().models) <= 2


def test_a_model_for_which_there_is_never_room_fails_with_one_sentence(machine: Machine) -> None:
    with pytest.raises(ModelDoesNotFit, match="set memory_gib"):
        machine.open(msgspec.structs.replace(SETTINGS, memory_gib=0.1))


def room_for_two_at_least_size(machine: Machine) -> ManagerConfig:
    """Settings of a manager in whose memory one model takes all, and two fit with smaller KV caches."""
    need = memory_need(machine.config(), str(machine.model))
    assert need.most_cache > 2 * need.least_cache
    return msgspec.structs.replace(SETTINGS, memory_gib=(2 * need.least + need.least_cache) / 2**30)


@pytest.mark.parametrize("dies", [False, True], ids=["it answers", "it is killed as it is told"])
def test_the_cache_of_a_model_with_work_shrinks_so_that_both_are_loaded(
    machine: Machine, folders: list[Path], dies: bool
) -> None:
    settings = room_for_two_at_least_size(machine)
    first = machine.open(settings, model=str(folders[0]))
    (folders[0] / "hold").touch()
    working = first.submit([ANSWER, 40, 1], SamplingParams(), request_id="long")
    if dies:
        (folders[0] / "behaviour").write_text("die resizing")
    second = machine.open(settings, model=str(folders[1]))
    assert tokens(second, "two") == answer([ANSWER, 3, 7], 3)
    assert not working.done()
    (size,) = (folders[0] / "resizes").read_text().split()
    need = memory_need(machine.config(), str(machine.model))
    assert need.least_cache <= int(size) < need.most_cache
    statuses = machine.status().models
    assert [model.loads for model in statuses] == [1, 1]
    assert [len(model.pids) for model in statuses] == [1, 1]
    assert [model.restarts for model in statuses] == [int(dies), 0]
    (folders[0] / "hold").unlink()
    assert working.result(PATIENCE).token_ids == answer([ANSWER, 40, 1], 40)

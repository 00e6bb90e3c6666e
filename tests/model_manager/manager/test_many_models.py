"""Several models and less memory than they take together: each is loaded in its turn, and all requests are answered."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.manager.memory_account import MACHINE
from millrace.model_manager.manager.memory_scheduler import MemoryScheduler
from millrace.model_manager.manager.outbox import Start, Stop, ToClient, ToEngine
from millrace.model_manager.manager.router import Router
from millrace.model_manager.store.memory import MemoryNeed, memory_need
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.errors import ModelDoesNotFit
from millrace.model_manager.wire.messages import Credits, ModelFailed, ModelReady, ModelWarnings, OpenModel, Submit
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import ModelInfo, ModelStatus
from tests.model_manager.manager.machine import PATIENCE, SETTINGS, Machine
from tests.model_manager.manager.router_world import INFO, output, request
from tests.model_manager.manager.stand_in_engine import ANSWER, answer

# ── the router ───────────────────────────────────────────────────────────────────────────────────────────────────────

A, B = (ModelConfig(model=name, backend="fake", max_num_seqs=4) for name in ("org/a", "org/b"))


class Crowd:
    """A router with room for one model, whose engines do what the test says."""

    def __init__(self, known: ModelInfo | None = None, need: int = 60) -> None:
        """`known`: what an earlier load of any model found; `need`: of 100, what an engine takes."""
        self.router = Router(
            SETTINGS,
            0.0,
            memory=MemoryScheduler({MACHINE: 100}, is_limited=True),
            estimate=lambda *_: MemoryNeed(need),
            known=lambda *_: known,
        )
        self.router.connect(1, observer=False)
        self.now = 0.0
        self.running: set[str] = set()
        self.given: dict[str, list[str]] = {}
        self.limits: dict[str, int] = {}
        self.warned: list[str] = []
        self.opened: list[str] = []
        self.refused: list[str] = []

    def open(self, config: ModelConfig, *, client: int = 1, on_demand: bool = False) -> None:
        self.router.open_model(client, OpenModel(config, "/", on_demand=on_demand), self.now)
        self.settle()

    def load(self, config: ModelConfig) -> None:
        self.router.model(config.key).ready(0, INFO, self.now)
        self.settle()

    def submit(self, config: ModelConfig, *names: str, client: int = 1) -> None:
        """Each client is of a job of its own."""
        asked = [msgspec.structs.replace(request(name), job=f"job {client}") for name in names]
        self.router.submit(client, Submit(config.key, asked), self.now)
        self.settle()

    def finish(self, config: ModelConfig, name: str) -> None:
        self.given[config.key].remove(name)
        self.router.model(config.key).report(0, StepReport(outputs=[output(name, [1])]), self.now)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.router.tick(self.now)
        self.settle()

    def settle(self) -> None:
        for effect in self.router.effects(self.now):
            match effect:
                case Start(key):
                    assert not self.running, "two models at once"
                    self.running.add(key)
                    self.given[key] = []
                case Stop(key):
                    self.running.remove(key)
                    assert not self.given[key], "unloaded with requests"
                case ToClient(_, ModelWarnings(key)):
                    self.warned.append(key)
                case ToClient(_, ModelReady(key)):
                    self.opened.append(key)
                case ToClient(_, ModelFailed(key)):
                    self.refused.append(key)
                case ToClient(_, Credits(key, limit)):
                    self.limits[key] = limit
                case ToEngine(key, Submit(_, requests)):
                    self.given[key] += [each.request_id for each in requests]
        self.router.check_integrity()

    def status(self, config: ModelConfig) -> ModelStatus:
        (found,) = [model for model in self.router.models({}) if model.key == config.key]
        return found


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


def beside_work(known: ModelInfo | None = INFO) -> Crowd:
    """The first model is loaded and works; there is no room for another."""
    crowd = Crowd(known)
    crowd.open(A, on_demand=True)
    assert (crowd.running, crowd.opened) == ({A.key}, []), "alone it is loaded as it is opened"
    crowd.load(A)
    crowd.submit(A, "row")
    return crowd


def test_where_not_all_fit_a_known_model_is_opened_on_demand_and_loaded_for_its_first_request() -> None:
    crowd = beside_work()
    crowd.open(B, on_demand=True)
    assert crowd.opened == [A.key, B.key]
    assert crowd.limits == {A.key: 64, B.key: 64}
    crowd.finish(A, "row")
    crowd.pass_time(30)
    assert crowd.running == {A.key}, "nobody has a request for the other"
    assert (crowd.status(B).state, crowd.status(B).loads) == ("idle", 0)
    crowd.submit(B, "first")
    crowd.pass_time(1)
    assert crowd.running == {B.key}
    crowd.load(B)
    assert crowd.given[B.key] == ["first"]
    assert crowd.opened == [A.key, B.key], "told once"


@pytest.mark.parametrize(
    ("known", "pinned", "on_demand"), [(None, False, True), (INFO, True, True), (INFO, False, False)]
)
def test_a_model_that_is_new_or_pinned_or_wanted_at_once_is_loaded_as_it_is_opened(
    known: ModelInfo | None, pinned: bool, on_demand: bool
) -> None:
    crowd = beside_work(known)
    crowd.open(msgspec.structs.replace(B, pinned=pinned), on_demand=on_demand)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    assert crowd.opened == [A.key]
    assert crowd.running == {B.key}


def test_who_wants_a_model_at_once_waits_for_its_load_beside_who_opens_it_on_demand() -> None:
    crowd = beside_work()
    crowd.router.connect(2, observer=False)
    crowd.open(B)
    crowd.open(B, client=2, on_demand=True)
    assert crowd.opened == [A.key, B.key]
    crowd.finish(A, "row")
    crowd.pass_time(1)
    assert crowd.running == {B.key}, "the first client waits for it"
    crowd.load(B)
    assert crowd.opened == [A.key, B.key, B.key]


def test_a_load_that_has_begun_goes_on_when_the_model_is_opened_on_demand() -> None:
    crowd = Crowd(known=INFO)
    crowd.open(A, on_demand=True)
    crowd.open(B, on_demand=True)
    crowd.pass_time(1)
    assert crowd.running == {A.key}
    assert crowd.opened == [B.key]


def test_the_engines_of_a_model_that_is_opened_on_demand_count_all() -> None:
    crowd = Crowd(known=INFO, need=30)
    crowd.open(A)
    crowd.load(A)
    crowd.open(msgspec.structs.replace(B, num_engines=3), on_demand=True)
    assert crowd.limits[B.key] == 3 * crowd.limits[A.key]


def test_a_model_that_was_loaded_before_is_opened_on_demand_by_a_client_that_comes_back() -> None:
    crowd = beside_work(known=None)
    crowd.open(B)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    crowd.load(B)
    crowd.router.connect(2, observer=False)
    crowd.open(A, client=2, on_demand=True)
    assert crowd.opened == [A.key, B.key, A.key]
    assert (crowd.running, crowd.status(A).state) == ({B.key}, "idle")


def test_a_load_for_which_there_was_little_memory_makes_a_model_not_known() -> None:
    crowd = Crowd()
    crowd.open(A)
    crowd.router.model(A.key).ready(0, msgspec.structs.replace(INFO, is_cut=True), crowd.now)
    crowd.settle()
    crowd.submit(A, "row")
    crowd.open(B)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    crowd.load(B)
    crowd.router.connect(2, observer=False)
    crowd.open(A, client=2, on_demand=True)
    assert crowd.opened == [A.key, B.key]


def test_a_load_that_fails_after_the_model_was_opened_on_demand_fails_its_requests_once() -> None:
    crowd = beside_work()
    crowd.open(B, on_demand=True)
    crowd.finish(A, "row")
    crowd.submit(B, "first")
    crowd.pass_time(1)
    crowd.router.model(B.key).cannot_load(0, ModelDoesNotFit("no").info(), crowd.now)
    crowd.settle()
    assert (crowd.refused, crowd.running) == ([B.key], set())


def test_a_model_that_was_opened_on_demand_waits_until_a_pin_of_another_client_is_over() -> None:
    crowd = beside_work()
    crowd.open(B, on_demand=True)
    crowd.router.connect(2, observer=False)
    pinned = ModelConfig(model="org/c", backend="fake", max_num_seqs=4, pinned=True)
    crowd.open(pinned, client=2)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    crowd.load(pinned)
    crowd.submit(B, "first")
    crowd.pass_time(30)
    assert crowd.running == {pinned.key}
    assert (crowd.refused, crowd.status(B).state) == ([], "waiting")
    crowd.router.disconnect(2, crowd.now)
    crowd.pass_time(30)
    assert crowd.running == {B.key}


@pytest.mark.parametrize("pin_is_loaded", [True, False])
def test_a_known_model_is_refused_for_which_its_clients_own_pin_leaves_no_room(pin_is_loaded: bool) -> None:
    """As it is opened, or with its first request, where the pinned one was loaded in between: it would wait for its own
    end.
    """
    crowd = beside_work()
    pinned = ModelConfig(model="org/c", backend="fake", max_num_seqs=4, pinned=True)
    crowd.open(pinned)
    if not pin_is_loaded:
        crowd.open(B, on_demand=True)
        assert crowd.opened == [A.key, B.key]
    crowd.finish(A, "row")
    crowd.pass_time(1)
    crowd.load(pinned)
    if pin_is_loaded:
        crowd.open(B, on_demand=True)
    else:
        assert crowd.refused == []
        crowd.submit(B, "first")
    crowd.pass_time(1)
    assert crowd.refused == [B.key]


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

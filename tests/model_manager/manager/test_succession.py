"""A model that takes another's place: beside it or after it, and what becomes of everybody's requests meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millrace.model_manager.manager.outbox import Effect, Start, Stop, ToClient, ToEngine
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelCorrupt, ModelDoesNotFit
from millrace.model_manager.wire.messages import (
    CloseModel,
    Credits,
    Failure,
    ModelFailed,
    ModelReady,
    OpenModel,
    Output,
    Replaced,
    Results,
    StepReport,
    Submit,
)
from tests.model_manager.manager.router_world import INFO, SETTINGS, model, output, request, router_with_room_for

OLD, NEW, NEWER = (model(name) for name in ("old", "new", "newer"))
ROOM_FOR_ONE, ROOM_FOR_TWO = 1.5, 2.5


@dataclass
class Machine:
    """A router, and what it has told everybody."""

    room: float
    now: float = 0.0
    running: list[str] = field(default_factory=list)
    """Models, by name, in the order of their start."""
    ready: list[str] = field(default_factory=list)
    at_engines: dict[str, list[str]] = field(default_factory=dict)
    told: dict[int, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.router = router_with_room_for(self.room)

    def client(self, number: int, config: ModelConfig, group: str = "job", replaces: ModelConfig | None = None) -> None:
        """It opens a model, in the place of another one."""
        if number not in self.told:
            self.router.connect(number, observer=False)
            self.told[number] = []
        key = replaces.key if replaces else ""
        self.router.open_model(
            number, OpenModel(config, "/", group=group, replaces=key, client_config=config), self.now
        )
        self.settle()

    def close(self, number: int, config: ModelConfig) -> None:
        self.router.close_model(number, CloseModel(config.key), self.now)
        self.settle()

    def submit(self, number: int, config: ModelConfig, *names: str) -> None:
        self.router.submit(number, Submit(config.key, [request(name) for name in names]), self.now)
        self.settle()

    def load(self, config: ModelConfig) -> None:
        info = msgspec.structs.replace(INFO, name=config.model)
        self.router.engine_ready(config.key, info, self.now)
        self.ready.append(config.model)
        self.settle()

    def refuse(self, config: ModelConfig, error: Exception) -> None:
        assert isinstance(error, ModelDoesNotFit | ModelCorrupt)
        self.router.engine_failed(config.key, error.info())
        self.settle()

    def finish(self, config: ModelConfig, *names: str) -> None:
        self.router.engine_report(config.key, StepReport(outputs=[output(name, [1]) for name in names]), self.now)
        self.settle()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.router.tick(self.now)
        self.settle()

    def settle(self) -> None:
        while effects := self.router.effects(self.now):
            for effect in effects:
                self._carry_out(effect)
        self.router.check_integrity()

    def _carry_out(self, effect: Effect) -> None:
        names = {config.key: config.model for config in (OLD, NEW, NEWER)}
        match effect:
            case Start(key):
                self.running.append(names[key])
            case Stop(key):
                self.running.remove(names[key])
            case ToEngine(key, Submit(_, requests)):
                self.at_engines.setdefault(names[key], []).extend(each.request_id for each in requests)
            case ToClient(client, message) if client in self.told:
                self.told[client].append(message)

    def heard(self, client: int, kind: Callable[..., Any]) -> list[Any]:
        """Messages of one kind."""
        return [message for message in self.told[client] if isinstance(message, kind)]  # type: ignore[arg-type]

    def limit(self, client: int, config: ModelConfig) -> int:
        """The credit that a client was given last."""
        given: list[Credits] = self.heard(client, Credits)
        return [each.limit for each in given if each.key == config.key][-1]

    def answers(self, client: int) -> dict[str, str]:
        """What came of each request: `output` or the error."""
        found: dict[str, str] = {}
        for results in self.heard(client, Results):
            answers: list[Output | Failure] = [*results.outputs, *results.failures]
            found |= {each.request_id: "output" if isinstance(each, Output) else each.error.kind for each in answers}
        return found


def machine(room: float, *clients: int) -> Machine:
    """The old model is loaded, and these clients use it."""
    made = Machine(room)
    for client in clients:
        made.client(client, OLD)
    made.load(OLD)
    return made


def test_requests_that_cross_with_the_word_are_sent_back_and_retries_still_find_theirs() -> None:
    made = machine(ROOM_FOR_ONE, 1, 2)
    made.submit(1, OLD, "a", "b")
    made.finish(OLD, "a")
    made.client(1, NEW, replaces=OLD)
    made.submit(2, OLD, "a", "b", "late")
    made.finish(OLD, "b")
    assert made.answers(2) == {"a": "output", "b": "output", "late": "ModelReplaced"}
    assert made.at_engines["old"] == ["a", "b"]


def test_a_new_model_that_cannot_be_loaded_gives_the_old_one_its_requests_back() -> None:
    made = machine(ROOM_FOR_ONE, 1)
    made.client(1, NEW, replaces=OLD)
    assert made.running == ["new"]
    made.refuse(NEW, ModelCorrupt("damaged"))
    assert made.heard(1, ModelFailed)[-1].error.kind == "ModelCorrupt"
    assert made.running == []
    made.wait(0.2)
    assert made.limit(1, OLD) > 0
    made.submit(1, OLD, "a")
    assert made.running == ["old"]
    made.load(OLD)
    made.finish(OLD, "a")
    assert made.answers(1) == {"a": "output"}


def test_a_model_that_others_use_too_is_not_ended_for_one_of_them() -> None:
    made = machine(ROOM_FOR_ONE, 1)
    made.client(2, OLD, group="")
    made.client(1, NEW, replaces=OLD)
    (failed,) = made.heard(1, ModelFailed)
    assert failed.error.kind == "ModelDoesNotFit"
    assert "new does not fit beside old, which others use too" in failed.error.message
    made.submit(1, OLD, "a")
    made.finish(OLD, "a")
    assert made.answers(1) == {"a": "output"}
    assert made.running == ["old"]


def test_requests_that_do_not_end_in_time_keep_their_model() -> None:
    made = machine(ROOM_FOR_ONE, 1)
    made.submit(1, OLD, "a")
    made.client(1, NEW, replaces=OLD)
    made.wait(SETTINGS.drain_timeout - 1)
    assert not made.heard(1, ModelFailed)
    made.wait(2)
    assert "did not end within drain_timeout = 300 s" in made.heard(1, ModelFailed)[0].error.message
    made.wait(0.2)
    assert made.limit(1, OLD) > 0
    made.finish(OLD, "a")
    assert made.answers(1) == {"a": "output"}


def test_an_engine_that_finds_no_room_beside_another_is_started_again_after_it() -> None:
    made = machine(ROOM_FOR_TWO, 1)
    made.submit(1, OLD, "a")
    made.client(1, NEW, replaces=OLD)
    made.refuse(NEW, ModelDoesNotFit("the GPU is full"))
    assert made.running == ["old"]
    assert made.limit(1, OLD) == 0
    made.finish(OLD, "a")
    assert made.running == ["new"]
    made.refuse(NEW, ModelDoesNotFit("nor alone"))
    assert made.heard(1, ModelFailed)[-1].error.message == "nor alone"


def test_what_is_not_wanted_any_more_makes_room_at_once() -> None:
    made = machine(ROOM_FOR_ONE, 1)
    made.client(1, NEW, replaces=OLD)
    made.close(1, NEW)
    made.client(1, NEWER, replaces=OLD)
    assert made.running == ["newer"]
    made.load(NEWER)
    assert made.heard(1, Replaced) == [Replaced(OLD.key, NEWER)]


def test_a_client_that_dies_while_it_waits_leaves_the_old_model_to_the_others() -> None:
    made = machine(ROOM_FOR_ONE, 1, 2)
    made.submit(2, OLD, "a")
    made.client(1, NEW, replaces=OLD)
    made.router.disconnect(1, made.now)
    del made.told[1]
    made.settle()
    made.wait(0.2)
    assert made.limit(2, OLD) > 0
    assert made.running == ["old"]


def test_who_comes_to_the_old_model_while_it_gives_way_is_sent_on() -> None:
    made = machine(ROOM_FOR_ONE, 1)
    made.client(1, NEW, replaces=OLD)
    made.client(2, OLD)
    assert made.running == ["new"]
    made.load(NEW)
    assert made.heard(2, Replaced) == [Replaced(OLD.key, NEW)]
    assert [failed.error.kind for failed in made.heard(2, ModelFailed)] == ["ModelReplaced"]
    assert not made.heard(2, ModelReady)


def test_after_a_managers_death_who_still_waits_for_the_old_model_is_sent_on_whoever_comes_first() -> None:
    for order in ([NEW, OLD], [OLD, NEW]):
        made = Machine(ROOM_FOR_ONE)
        for config in order:
            made.client(1, config, replaces=OLD if config is NEW else None)
        made.settle()
        assert made.running == ["new"]
        made.load(NEW)
        (failed,) = made.heard(1, ModelFailed)
        assert (failed.key, failed.error.kind) == (OLD.key, "ModelReplaced")
        made.submit(1, NEW, "a")
        made.finish(NEW, "a")
        assert made.answers(1) == {"a": "output"}


def test_who_does_not_change_models_gets_the_old_one_although_it_gives_way() -> None:
    made = machine(ROOM_FOR_ONE, 1)
    made.client(1, NEW, replaces=OLD)
    made.client(2, OLD, group="")
    assert made.running == ["new", "old"]


def test_of_two_models_that_are_to_take_each_others_places_the_one_asked_for_last_stays() -> None:
    made = machine(ROOM_FOR_ONE, 1, 2)
    made.submit(2, OLD, "a")
    made.client(1, NEW, replaces=OLD)
    made.client(3, NEW)
    made.client(3, OLD, replaces=NEW)
    (failed,) = made.heard(1, ModelFailed)
    assert "which was asked for since" in failed.error.message
    made.finish(OLD, "a")
    made.wait(0.2)
    assert made.running == ["old"]
    assert made.limit(2, OLD) > 0

"""The model that elements go to while updates come, with clients that the test opens."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path

import pytest

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelNotFound, RequestAborted
from millrace.transforms.models.client import ClientOptions
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.models.switch import ModelChange, ModelSwitch
from millrace.transforms.models.updates import WatchedFile
from tests.waiting import eventually

PATIENCE = 20.0


class Client(StandInClient):
    """Says what was done with it."""

    def __init__(self, options: ClientOptions, log: list[str]) -> None:
        super().__init__(options)
        self._log, self._name = log, options.model.model
        log.append(f"open {self._name}")

    def retire(self) -> None:
        self._log.append(f"retire {self._name}")

    def close(self) -> None:
        self._log.append(f"close {self._name}")
        super().close()


class World:
    """Opens clients: of a name with `slow` only as it is let, of one with `bad` never."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.let: dict[str, threading.Event] = defaultdict(threading.Event)
        self.asked: list[ClientOptions] = []

    def open(self, options: ClientOptions) -> Client:
        self.asked.append(options)
        name = options.model.model
        if "bad" in name:
            raise ModelNotFound(f"--model {name}: no such folder")
        if "slow" in name:
            assert options.abandoned is not None
            while not self.let[name].wait(0.01):
                if options.abandoned.is_set():
                    raise RequestAborted("not waited for any more")
        return Client(options, self.log)

    def switch(self, model: str = "a", watched: WatchedFile | None = None) -> ModelSwitch:
        switch = ModelSwitch(ClientOptions(ModelConfig(model=model), job="j"), self.open, watched)
        switch.enter()
        return switch


@pytest.fixture
def world() -> World:
    return World()


def name(switch: ModelSwitch) -> str:
    """Where an element goes that comes and ends at once."""
    client = switch.begin()
    switch.finish(client)
    return client.model


def test_elements_go_on_with_the_old_model_until_the_new_one_is_open(world: World) -> None:
    switch = world.switch()
    assert name(switch) == "a"
    switch.ask("slow b")
    assert name(switch) == "a"
    world.let["slow b"].set()
    eventually(lambda: name(switch) == "slow b" and "close a" in world.log)
    switch.leave()
    assert world.log == ["open a", "open slow b", "retire a", "close a", "close slow b"]


def test_the_old_model_is_let_go_with_its_last_element(world: World) -> None:
    switch = world.switch()
    one, other = switch.begin(), switch.begin()
    switch.ask("b")
    eventually(lambda: name(switch) == "b")
    switch.finish(one)
    assert "close a" not in world.log
    switch.finish(other)
    eventually(lambda: "close a" in world.log)  # or by the thread that opened b, which uses a until its end


def test_it_may_be_left_in_a_thread_that_enters_it(world: World) -> None:
    """As the garbage collector does it, in the middle of whatever runs."""
    switch = world.switch()
    name(switch)
    with switch._lock:
        switch.leave()
    assert world.log == ["open a", "close a"]


def test_a_model_that_cannot_be_opened_leaves_the_old_one_and_the_next_update_is_tried(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    switch = world.switch()
    name(switch)
    switch.ask("bad b")
    eventually(lambda: "the model stays a: the update to bad b failed" in caplog.text)
    assert "--model bad b: no such folder" in caplog.text
    assert name(switch) == "a"
    switch.ask("c")
    eventually(lambda: name(switch) == "c")
    assert switch.take_changes() == [ModelChange("bad b", "ModelNotFound"), ModelChange("c")]
    assert switch.take_changes() == []


def test_of_two_quick_updates_the_later_one_holds_and_the_other_is_abandoned(world: World) -> None:
    switch = world.switch()
    name(switch)
    switch.ask("slow b")
    eventually(lambda: world.asked[-1].model.model == "slow b")
    switch.ask("c")
    eventually(lambda: name(switch) == "c")
    assert world.asked[1].abandoned is not None
    assert world.asked[1].abandoned.is_set()
    assert "open slow b" not in world.log
    assert switch.take_changes() == [ModelChange("c")]


def test_an_update_back_to_the_model_that_is_there_abandons_the_other_and_changes_nothing(world: World) -> None:
    switch = world.switch()
    first = switch.begin()
    switch.ask("slow b")
    switch.ask("a")
    eventually(lambda: world.log == ["open a", "open a", "close a"])
    assert switch.current is first
    assert switch.take_changes() == []
    switch.finish(first)


def test_an_update_may_name_a_revision(world: World) -> None:
    switch = world.switch()
    name(switch)
    switch.ask({"model": "b", "revision": "r2"})
    eventually(lambda: name(switch) == "b")
    current = switch.current
    assert current is not None
    assert (current.model, current.info.revision) == ("b", "r2")


def test_a_model_named_before_the_first_element_is_opened_at_once(world: World) -> None:
    switch = world.switch()
    switch.ask("b")
    assert world.log == []
    assert name(switch) == "b"
    assert world.log == ["open b"]


def test_where_the_first_update_cannot_be_opened_the_transforms_own_model_is(world: World) -> None:
    switch = world.switch()
    switch.ask("bad b")
    assert name(switch) == "a"
    assert [change.model for change in switch.take_changes()] == ["bad b"]


def test_a_first_model_that_cannot_be_opened_is_raised_to_whoever_has_the_element(world: World) -> None:
    switch = world.switch("bad a")
    with pytest.raises(ModelNotFound):
        switch.begin()


def test_a_first_model_that_is_left_while_it_is_opened_is_not_waited_for(world: World) -> None:
    switch = world.switch("slow a")
    thread = threading.Thread(target=lambda: switch.finish(switch.begin()))
    thread.start()
    eventually(lambda: len(world.asked) == 1)
    switch.ask("b")
    thread.join(PATIENCE)
    assert name(switch) == "b"
    assert world.log == ["open b"]


def test_late_elements_of_earlier_windows_do_not_turn_the_model_back(world: World) -> None:
    switch = world.switch()
    switch.see("a", 10)
    name(switch)
    switch.see("b", 20)
    eventually(lambda: name(switch) == "b")
    switch.see("a", 10)
    switch.see("b", 30)
    switch.see("c", 25)
    switch.see(None, 40)
    switch.see("b", 50)
    eventually(lambda: switch._opening is None)
    assert name(switch) == "b"
    assert "open c" not in world.log


def test_closing_abandons_what_is_being_opened(world: World) -> None:
    switch = world.switch()
    name(switch)
    switch.ask("slow b")
    eventually(lambda: len(world.asked) == 2)
    switch.leave()
    abandoned = world.asked[1].abandoned
    assert abandoned is not None
    assert abandoned.is_set()
    assert world.log == ["open a", "close a"]


def test_after_everybody_has_left_the_model_that_was_named_last_is_opened_again(world: World) -> None:
    switch = world.switch()
    name(switch)
    switch.ask("b")
    eventually(lambda: name(switch) == "b")
    switch.leave()
    switch.enter()
    assert name(switch) == "b"


# ── a watched file ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model"


def watched(file: Path) -> WatchedFile:
    return WatchedFile(str(file), every=0.02)


def test_a_watched_file_names_the_model_from_the_beginning_and_later(world: World, file: Path) -> None:
    file.write_text("b\n")
    switch = world.switch(watched=watched(file))
    assert name(switch) == "b"
    file.write_text('{"model": "c", "revision": "r2"}')
    eventually(lambda: name(switch) == "c")
    assert switch.current is not None
    assert switch.current.info.revision == "r2"
    switch.leave()


def test_without_the_file_the_transforms_own_model_holds_until_there_is_one(world: World, file: Path) -> None:
    switch = world.switch(watched=watched(file))
    assert name(switch) == "a"
    file.write_text("b")
    eventually(lambda: name(switch) == "b")
    switch.leave()


def test_what_a_file_says_wrongly_is_logged_and_counted_and_the_next_text_is_tried(
    world: World, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = world.switch(watched=watched(file))
    name(switch)
    for text, complaint in [
        ('{"model": "hal', "is no JSON object"),
        ('{"modell": "b"}', "modell"),
        ("bad b", "no such folder"),
    ]:
        file.write_text(text)
        eventually(lambda complaint=complaint: complaint in caplog.text)  # type: ignore[misc]
    file.write_text("c")
    eventually(lambda: name(switch) == "c")
    assert [change.error for change in switch.take_changes()] == ["ConfigError", "ConfigError", "ModelNotFound", ""]
    switch.leave()


def test_a_file_that_cannot_be_read_is_said_once_and_looked_at_again(
    world: World, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(b"\xff\xfe")
    switch = world.switch(watched=watched(file))
    name(switch)
    assert switch._watch is not None
    for _ in range(3):
        switch._watch.look()
    assert caplog.text.count("cannot be read, and the model stays") == 1
    file.write_text("better")
    eventually(lambda: name(switch) == "better")
    switch.leave()


def test_a_file_written_again_has_the_same_name_looked_up_anew(world: World, file: Path) -> None:
    """A branch may have moved, a bucket's objects may be others."""
    file.write_text("b")
    switch = world.switch(watched=watched(file))
    name(switch)
    before = len(world.asked)
    file.write_text("b ")
    eventually(lambda: len(world.asked) == before + 1)
    switch.leave()

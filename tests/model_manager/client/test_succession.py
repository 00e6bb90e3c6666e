"""A client whose model takes another's place, with real managers and engines."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest

from millrace.model_manager.client import EngineClient, Generation, Succession
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ModelDoesNotFit, ModelReplaced, RequestAborted
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import MANAGER, PATIENCE, SETTINGS, Machine, eventually, kill
from tests.model_manager.manager.stand_in_engine import ANSWER, answer

TOKENS = 30
PARAMS = SamplingParams(max_tokens=TOKENS)
ROOM_FOR_ONE = msgspec.structs.replace(SETTINGS, memory_gib=0.5)


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")


@pytest.fixture
def other(machine: Machine) -> Path:
    """Another model."""
    folder = shutil.copytree(machine.model, machine.folder / "other")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def opened(
    machine: Machine,
    model: Path,
    replaces: EngineClient | None = None,
    settings: ManagerConfig = SETTINGS,
    succession: Succession | None = None,
) -> EngineClient:
    """A client of a group, which leaves another for this model."""
    return EngineClient.open(
        ModelConfig(model=str(model), backend="fake", max_num_seqs=4),
        manager=settings,
        runtime=machine.runtime,
        chat=False,
        manager_command=MANAGER,
        succession=succession or Succession("group", replaces.key if replaces else ""),
    )


def submit(client: EngineClient, count: int, prefix: str = "") -> list[Future[Generation]]:
    """More than run at once, and no more than there are credits for."""
    return [client.submit([ANSWER, TOKENS, n], PARAMS, request_id=f"{prefix}{n}") for n in range(count)]


def expect_whole(futures: list[Future[Generation]]) -> None:
    for index, future in enumerate(futures):
        assert future.result(PATIENCE).token_ids == answer([ANSWER, TOKENS, index], TOKENS)


def engines(machine: Machine) -> dict[str, list[int]]:
    """Pids by the name of the model's folder."""
    status = machine.status()
    return {Path(model.model).name: model.pids for model in status.models if model.pids}


def test_two_models_run_side_by_side_until_the_old_one_is_let_go(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model)
    futures = submit(old, 8)
    new = opened(machine, other, replaces=old)
    assert set(engines(machine)) == {"model", "other"}
    expect_whole(futures)
    expect_whole(submit(new, 4))
    assert old.info.revision != new.info.revision
    old.close()
    eventually(lambda: set(engines(machine)) == {"other"}, "the end of the old engine")
    new.close()


def test_without_room_for_both_the_old_engine_is_gone_before_the_new_one_starts(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model, settings=ROOM_FOR_ONE)
    futures = submit(old, 8)
    (pid,) = engines(machine)["model"]
    starts = other / "starts"
    opening: list[EngineClient] = []
    thread = threading.Thread(target=lambda: opening.append(opened(machine, other, replaces=old)))
    thread.start()
    while thread.is_alive():
        alive = psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        assert not (alive and starts.read_text()), "both at once"
        thread.join(0.01)
    expect_whole(futures)
    expect_whole(submit(opening[0], 4))
    old.close()
    opening[0].close()


def test_who_waits_for_a_credit_meanwhile_is_sent_on_and_what_is_on_its_way_ends(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model, settings=ROOM_FOR_ONE)
    futures = submit(old, 8)
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(opened, machine, other, old)
        waiting = pool.submit(submit, old, 1, "late")
        new = opening.result(PATIENCE)
        expect_whole(futures)
        old.retire()
        try:
            for future in waiting.result(PATIENCE):  # it got there in time, and either ended or was sent back
                future.result(PATIENCE)
        except ModelReplaced:
            pass
    with pytest.raises(ModelReplaced):
        submit(old, 1, "later")
    old.close()
    new.close()


def test_a_model_that_does_not_fit_leaves_the_old_one_as_it_was(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model)
    futures = submit(old, 8)
    (other / "behaviour").write_text("refuse")
    with pytest.raises(ModelDoesNotFit, match="needs 900 GiB"):
        opened(machine, other, replaces=old)
    expect_whole(futures)
    expect_whole(submit(old, 4, "again"))
    old.close()


def test_an_engine_killed_while_it_gives_way_costs_no_request(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model, settings=ROOM_FOR_ONE)
    futures = submit(old, 8)
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(opened, machine, other, old)
        eventually(lambda: any(model.state == "waiting" for model in machine.status().models), "the wait for room")
        kill(engines(machine)["model"][0])
        new = opening.result(PATIENCE)
    expect_whole(futures)
    expect_whole(submit(new, 4))
    old.close()
    new.close()


def test_an_opening_that_is_abandoned_ends_and_the_old_model_goes_on(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model, settings=ROOM_FOR_ONE)
    futures = submit(old, 8)
    abandoned = threading.Event()
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(
            opened, machine, other, succession=Succession("group", old.key, None, abandoned), settings=ROOM_FOR_ONE
        )
        eventually(lambda: any(model.state == "waiting" for model in machine.status().models), "the wait for room")
        abandoned.set()
        with pytest.raises(RequestAborted):
            opening.result(PATIENCE)
    expect_whole(futures)
    expect_whole(submit(old, 4, "again"))
    assert not (other / "starts").read_text()
    old.close()


def test_fellows_are_told_where_to_follow(machine: Machine, other: Path) -> None:
    told: list[ModelConfig] = []
    fellow = opened(machine, machine.model, succession=Succession("group", "", told.append))
    stranger = opened(machine, machine.model, succession=Succession("", "", told.append))
    old = opened(machine, machine.model)
    new = opened(machine, other, replaces=old)
    eventually(lambda: told, "the word")
    assert [config.model for config in told] == [str(other)]
    assert told[0].revision is None
    for client in (fellow, stranger, old, new):
        client.close()

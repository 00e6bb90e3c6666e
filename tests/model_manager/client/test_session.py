"""A client that leaves its model for another one, with real managers and engines."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from millrace.model_manager.client import EngineClient
from millrace.model_manager.client.session import WouldWait
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelDoesNotFit, ModelReplaced, RequestAborted
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import MANAGER, PATIENCE, SETTINGS, Machine
from tests.model_manager.manager.stand_in_engine import ANSWER, answer
from tests.waiting import eventually

TOKENS = 30
PARAMS = SamplingParams(max_tokens=TOKENS)


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")


@pytest.fixture
def other(machine: Machine) -> Path:
    """Another model."""
    folder = shutil.copytree(machine.model, machine.folder / "other")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def opened(machine: Machine, model: Path, abandoned: threading.Event | None = None) -> EngineClient:
    return EngineClient.open(
        ModelConfig(model=str(model), backend="fake", max_num_seqs=4),
        manager=SETTINGS,
        runtime=machine.runtime,
        chat=False,
        manager_command=MANAGER,
        abandoned=abandoned,
    )


def submit(client: EngineClient, number: int, prefix: str = "") -> list[Future[Output]]:
    """More than run at once, and no more than there are credits for."""
    return [client.submit([ANSWER, TOKENS, n], PARAMS, request_id=f"{prefix}{n}") for n in range(number)]


def expect_whole(futures: list[Future[Output]]) -> None:
    for index, future in enumerate(futures):
        assert future.result(PATIENCE).token_ids == answer([ANSWER, TOKENS, index], TOKENS)


def engines(machine: Machine) -> dict[str, list[int]]:
    """Pids by the name of the model's folder."""
    return {Path(model.model).name: model.pids for model in machine.status().models if model.pids}


def test_two_models_run_side_by_side_until_the_old_one_is_closed(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model)
    futures = submit(old, 8)
    new = opened(machine, other)
    assert set(engines(machine)) == {"model", "other"}
    old.retire()
    expect_whole(futures)
    expect_whole(submit(new, 4))
    assert old.info.revision != new.info.revision
    old.close()
    eventually(lambda: set(engines(machine)) == {"other"}, "the end of the old engine")
    new.close()


def test_a_retired_client_takes_no_requests_nor_does_one_wait_for_a_credit(machine: Machine) -> None:
    old = opened(machine, machine.model)
    longer = SamplingParams(max_tokens=4000)
    futures = [old.submit([ANSWER, 4000, n], longer, request_id=f"{n}") for n in range(8)]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(submit, old, 1, "without a credit")
        old.retire()
        with pytest.raises(ModelReplaced):
            waiting.result(PATIENCE)
    with pytest.raises(ModelReplaced):
        submit(old, 1, "later")
    assert not any(future.done() for future in futures)
    old.close()


def test_a_request_that_may_not_wait_is_sent_with_others_or_refused(machine: Machine) -> None:
    client = opened(machine, machine.model)
    ids = [ANSWER, TOKENS, 0]
    expect_whole(submit(client, 1))  # the credits have come
    futures = [client.submit(ids, PARAMS, request_id=name, may_wait=False) for name in "ab"]
    client.flush_at_once()
    for future in futures:
        assert future.result(PATIENCE).token_ids == answer(ids, TOKENS)
    for index in count():
        try:
            client.submit([ANSWER, 4000, 1], SamplingParams(max_tokens=4000), request_id=f"{index}", may_wait=False)
        except WouldWait:
            break
    assert 4 <= index <= 64, "credits of a model that runs four at a time"
    with pytest.raises(WouldWait):
        client.submit(ids, SamplingParams(max_tokens=1, n=2), request_id="two answers", may_wait=False)
    client.close()


def test_a_model_that_does_not_fit_leaves_the_old_one_as_it_was(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model)
    futures = submit(old, 8)
    (other / "behaviour").write_text("refuse")
    with pytest.raises(ModelDoesNotFit, match="needs 900 GiB"):
        opened(machine, other)
    expect_whole(futures)
    expect_whole(submit(old, 4, "again"))
    old.close()


def test_an_opening_that_is_abandoned_ends_and_other_models_go_on(machine: Machine, other: Path) -> None:
    old = opened(machine, machine.model)
    abandoned = threading.Event()
    (other / "behaviour").write_text("hang")
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(opened, machine, other, abandoned)
        eventually(lambda: "other" in engines(machine), "the start of the other engine")
        abandoned.set()
        with pytest.raises(RequestAborted):
            opening.result(PATIENCE)
    expect_whole(submit(old, 4))
    old.close()

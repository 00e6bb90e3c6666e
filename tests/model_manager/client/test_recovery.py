"""Whoever dies or stops: every future is completed, with the whole output, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from millrace.model_manager.client import EngineClient, observing
from millrace.model_manager.client import status as status_module
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.client.status import read_status, stop_models, sweep
from millrace.model_manager.wire.errors import (
    EngineKiller,
    EngineLost,
    ManagerUnavailable,
    ModelDoesNotFit,
    ModelError,
    ModelLoadFailed,
)
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import HASTY, PATIENCE, SETTINGS, Machine, kill, results
from tests.model_manager.manager.stand_in_engine import ANSWER, DIE, answer
from tests.waiting import eventually

TOKENS = 30
PARAMS = SamplingParams(max_tokens=TOKENS)

Futures = dict[str, Future[Output]]


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")


def prompt(index: int) -> list[int]:
    return [ANSWER, TOKENS, index]


def submit(client: EngineClient, count: int) -> Futures:
    return {str(index): client.submit(prompt(index), PARAMS, request_id=str(index)) for index in range(count)}


def expect_whole(futures: Futures) -> None:
    for name, future in futures.items():
        assert future.result(PATIENCE).token_ids == answer(prompt(int(name)), TOKENS)


def until_under_way(machine: Machine) -> None:
    """Some requests run; in a block of `machine.held()` none of them can be done."""
    eventually(lambda: machine.model_status().stats.steps > 5, "steps")


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_an_engine_that_stops_answering_in_mid_run_is_replaced_and_its_requests_finish(
    machine: Machine, blow: signal.Signals
) -> None:
    client = machine.open() if blow is signal.SIGKILL else machine.open_under_hasty_manager()
    with machine.held():
        futures = submit(client, 16)
        until_under_way(machine)
        kill(machine.engine_pid(), blow)
    expect_whole(futures)
    restarts = machine.model_status().restarts
    assert restarts == 1 if blow is signal.SIGKILL else restarts >= 1


def test_the_shipped_engine_goes_on_in_its_successor_with_the_same_tokens(machine: Machine) -> None:
    client = machine.open(command=MANAGER_COMMAND)
    prompts = {str(index): [1, 2, index] for index in range(16)}
    futures = {name: client.submit(ids, PARAMS, request_id=name) for name, ids in prompts.items()}
    until_under_way(machine)
    kill(machine.engine_pid())
    interrupted = {name: future.result(PATIENCE).token_ids for name, future in futures.items()}
    undisturbed = {
        name: client.submit(ids, PARAMS, request_id=f"{name} again").result(PATIENCE).token_ids
        for name, ids in list(prompts.items())[:4]
    }
    assert all(len(tokens) == TOKENS for tokens in interrupted.values())
    assert undisturbed == {name: interrupted[name] for name in undisturbed}


def test_two_kills_in_mid_run_fail_no_request(machine: Machine) -> None:
    client = machine.open()
    with machine.held():
        futures = submit(client, 16)
        for _ in range(2):
            until_under_way(machine)
            pid = machine.engine_pid()
            kill(pid)
            eventually(lambda old=pid: machine.model_status().pids not in ([], [old]), "another engine")  # type: ignore[misc]
    expect_whole(futures)


def test_a_manager_that_is_killed_in_mid_run_is_replaced_and_the_requests_finish(machine: Machine) -> None:
    client = machine.open()
    with machine.held():
        futures = submit(client, 16)
        until_under_way(machine)
        manager, engine = machine.status().pid, machine.engine_pid()
        kill(manager)
    expect_whole(futures)
    assert machine.status().pid != manager
    eventually(lambda: engine not in [process.pid for process in machine.processes()], "the old engine's end")


def test_who_may_lose_no_manager_is_told_of_the_first_loss(machine: Machine) -> None:
    client = machine.open(SETTINGS.parse({"max_manager_losses": 0, "linger": 0.1, "orphan_grace": 0.5}))
    with machine.held():
        futures = submit(client, 2)
        until_under_way(machine)
        kill(machine.status().pid)
        for future in futures.values():
            with pytest.raises(ManagerUnavailable, match=r"lost 1 time in a row \(max_manager_losses\)"):
                future.result(PATIENCE)
    client.close()
    expect_whole(submit(machine.open(), 2))


def test_the_engine_after_a_killed_manager_goes_on_from_what_the_client_was_told(machine: Machine) -> None:
    client = machine.open()
    prompt = [ANSWER, 100, 1]
    with machine.held():
        future = client.submit(prompt, SamplingParams(max_tokens=100), request_id="1")
        (pending,) = client._session._ledger._pending.values()
        eventually(lambda: pending.generated is not None and len(pending.generated.token_ids) > 3)
        assert pending.generated is not None
        kept = len(pending.generated.token_ids)
        kill(machine.status().pid)
    token_ids = future.result(PATIENCE).token_ids
    assert token_ids == answer(prompt, 100)
    assert machine.model_status().stats.steps <= len(token_ids) - kept


def test_a_manager_that_stops_answering_is_replaced_and_the_requests_finish(machine: Machine) -> None:
    first, second = machine.open(HASTY), machine.open(HASTY)
    futures = submit(first, 16)
    manager = machine.status().pid
    kill(manager, signal.SIGSTOP)
    expect_whole(futures)
    assert second.submit(prompt(3), PARAMS, request_id="second").result(PATIENCE).token_ids
    assert machine.status().pid != manager


def test_a_manager_that_stops_answering_before_it_welcomes_a_client_is_replaced(machine: Machine) -> None:
    with machine.open():
        manager = machine.status().pid
        kill(manager, signal.SIGSTOP)
    expect_whole(submit(machine.open(HASTY), 2))
    assert machine.status().pid != manager


def test_a_client_waiting_for_a_credit_survives_the_managers_death(machine: Machine) -> None:
    client = machine.open(max_num_seqs=1)
    done: Futures = {}
    thread = threading.Thread(target=lambda: done.update(submit(client, 6)))
    with machine.held():
        thread.start()
        until_under_way(machine)
        eventually(lambda: client._session._waits, "a wait for a credit")
        kill(machine.status().pid)
    thread.join(PATIENCE)
    expect_whole(done)
    assert len(done) == 6


def test_an_idle_client_starts_nothing_when_the_manager_dies_and_goes_on_with_its_next_request(
    machine: Machine,
) -> None:
    client = machine.open()
    expect_whole(submit(client, 1))
    kill(machine.status().pid)
    eventually(lambda: not machine.processes(), "the end of all processes")
    assert read_status(machine.runtime) is None
    expect_whole(submit(client, 2))


def test_when_a_client_is_killed_its_requests_are_cancelled_and_all_ends(machine: Machine) -> None:
    worker = machine.worker(16, 3000)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    until_under_way(machine)
    worker.kill()
    machine.wait_until_gone()


def test_when_one_of_two_clients_is_killed_the_other_goes_on(machine: Machine) -> None:
    client = machine.open()
    worker = machine.worker(16, 3000, prefix="worker-")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    futures = submit(client, 8)
    worker.kill()
    expect_whole(futures)
    eventually(lambda: machine.model_status().outstanding == 0, "the orphans' end")


def test_a_client_that_is_interrupted_leaves_nothing(machine: Machine) -> None:
    worker = machine.worker(16, 3000)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    until_under_way(machine)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PATIENCE) != 0
    machine.wait_until_gone()


def test_a_retry_of_a_dead_clients_requests_takes_over_what_runs(machine: Machine) -> None:
    with machine.held():
        worker = machine.worker(4, 60)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        until_under_way(machine)
        client = machine.open()
        worker.kill()
        params = SamplingParams(max_tokens=60)
        futures = [client.submit([ANSWER, 60, index], params, request_id=str(index)) for index in range(4)]
    for index, future in enumerate(futures):
        assert future.result(PATIENCE).token_ids == answer([ANSWER, 60, index], 60)
    job = {each.job: each for each in machine.status().jobs}
    assert sum(each.finished for each in job.values()) == 4


@pytest.mark.parametrize(
    ("behaviour", "error", "said", "starts"),
    [
        ("refuse", ModelDoesNotFit, "needs 900 GiB", 1),
        ("crash", ModelLoadFailed, "no such module: imaginary", 1),
        ("killed", EngineLost, "SIGKILL", SETTINGS.max_restarts + 1),
    ],
)
def test_a_model_that_cannot_be_loaded_fails_with_its_reason_and_is_tried_again_only_where_that_may_help(
    machine: Machine, behaviour: str, error: type[Exception], said: str, starts: int
) -> None:
    machine.behave(behaviour)
    with pytest.raises(error, match=said):
        machine.open()
    assert machine.starts() == starts
    machine.wait_until_gone()


def test_a_model_that_does_not_get_loaded_in_time_fails_and_the_setting_is_named(machine: Machine) -> None:
    machine.behave("stuck")
    with pytest.raises(ModelLoadFailed, match="load_timeout"):
        machine.open(SETTINGS.parse({"load_timeout": 500.0, "linger": 0.5}))


def test_an_engine_that_hangs_while_it_loads_is_replaced(machine: Machine) -> None:
    machine.behave("hang once")
    machine.open(HASTY)
    assert machine.starts() >= 2


def test_a_request_that_kills_its_engine_fails_alone(machine: Machine) -> None:
    client = machine.open()
    poison = client.submit([DIE, 1], PARAMS, request_id="poison")
    futures = submit(client, 12)
    with pytest.raises(EngineKiller):
        poison.result(PATIENCE)
    expect_whole(futures)


def test_stopping_the_models_fails_the_job_and_leaves_nothing(machine: Machine) -> None:
    client = machine.open()
    with machine.held():
        futures = submit(client, 8)
        until_under_way(machine)
        stop_models(machine.runtime)
    with pytest.raises(ModelError, match="millrace stop"):
        futures["0"].result(PATIENCE)
    with pytest.raises(ModelError, match="millrace stop"):
        client.submit(prompt(0), PARAMS, request_id="late")
    machine.wait_until_gone()


def test_stopping_kills_a_manager_that_does_not_answer(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "ANSWER_WITHIN", 0.5)
    machine.open(SETTINGS.parse({"hang_timeout": 1000}))
    kill(machine.status().pid, signal.SIGSTOP)
    stop_models(machine.runtime)
    machine.wait_until_gone()


def test_stopping_a_manager_that_ends_just_before_it_is_killed_removes_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "ANSWER_WITHIN", 0.1)
    monkeypatch.setattr(status_module, "peer_pid_uid", lambda _sock: (2**22 - 1, 0))  # no process has this id
    runtime = RuntimeDir(tmp_path / "run")
    runtime.prepare()
    lock = runtime.try_lock()
    assert lock is not None
    sock = runtime.listen(lock)
    assert sock is not None
    os.close(lock)
    with sock:
        assert stop_models(runtime.path) is None
    assert not runtime.path.exists()


def test_stopping_removes_what_a_killed_manager_left(machine: Machine) -> None:
    machine.open()
    kill(machine.status().pid)
    eventually(lambda: not machine.processes(), "the end of all processes")
    assert stop_models(machine.runtime) is None
    machine.wait_until_gone()


def test_what_a_manager_left_that_is_killed_after_its_last_client_is_swept(machine: Machine) -> None:
    machine.open(SETTINGS.parse({"linger": 600.0})).close()
    sweep(machine.runtime)
    kill(machine.status().pid)
    eventually(lambda: not machine.processes(), "the end of all processes")
    assert machine.runtime.exists()
    sweep(machine.runtime)
    assert not machine.runtime.exists()


def test_workers_of_their_own_processes_share_one_engine_and_lose_nothing(machine: Machine) -> None:
    workers = [machine.worker(10, TOKENS, prefix=f"{number}-") for number in range(3)]
    found = [results(worker) for worker in workers]  # of all, before one closes its client
    for number, answers in enumerate(found):
        assert answers == {f"{number}-{index}": answer([ANSWER, TOKENS, index], TOKENS) for index in range(10)}
    assert machine.starts() == 1
    for worker in workers:
        worker.communicate()
    machine.wait_until_gone()


def test_scores_and_embeddings_survive_their_engine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.2")
    client = machine.open(command=MANAGER_COMMAND)
    scores = [client.score([7, index], [[8, 9], [8]], request_id=f"score {index}") for index in range(20)]
    vectors = [client.embed([7, index], request_id=f"embed {index}") for index in range(20)]
    kill(machine.engine_pid())
    lengths = [[len(each.prompt_logprobs or ()) for each in score.result(PATIENCE)] for score in scores]
    assert lengths == [[2, 1]] * 20
    assert all(any(vector.result(PATIENCE).vector) for vector in vectors)

"""Servers that are not there, go away in mid-job, or withdraw their key; and how work is shared among many."""

from __future__ import annotations

import pytest

from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.wire.errors import ModelLoadFailed, ModelLost
from millrace.model_manager.wire.request import Failure, Output
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import (
    answers,
    asked,
    drained,
    ended,
    engine_for,
    no_long_waits,
    servers,
    text,
)
from tests.model_manager.backends.stand_in_server import Servers, text_for
from tests.model_manager.manager.machine import PATIENCE, Machine, kill, machine
from tests.waiting import eventually

__all__ = ["machine", "no_long_waits", "servers"]


def test_an_address_without_a_server_ends_the_load() -> None:
    with (
        pytest.raises(ModelLoadFailed, match=r"no server lives: http://127\.0\.0\.1:1/"),
        engine_for("http://127.0.0.1:1", retries=0),
    ):
        pass


def test_servers_that_answer_nothing_for_long_end_the_job_and_no_row(servers: Servers) -> None:
    server = servers.start()
    with engine_for(server.url, down_timeout=0.05) as engine:
        servers.stop(server)
        for index in range(10):
            engine.add(asked(str(index)))
        with pytest.raises(ModelLoadFailed, match="no server has answered a request for"):
            drained(engine)


def test_one_of_two_servers_dies_and_the_other_gets_its_requests(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    with engine_for(first.url, second.url, max_num_seqs=8, retries=0) as engine:
        prompts = [f"row {index}" for index in range(400)]
        for prompt in prompts:
            engine.add(asked(prompt))
        found: dict[str, Output | Failure] = {}
        while engine.has_work():
            result = engine.step()
            found |= {each.request_id: each for each in ended(result)}
            if len(found) > 50 and first.url in servers.urls:
                servers.stop(first)
        assert {key: text(each) for key, each in found.items()} == {prompt: text_for(prompt) for prompt in prompts}
    assert 0 < len(first.seen) < 400


def test_a_server_that_is_down_from_the_beginning_gets_nothing(servers: Servers) -> None:
    dead, alive = servers.start(), servers.start()
    servers.stop(dead)
    with engine_for(dead.url, alive.url, retries=0) as engine:
        assert len(answers(engine, list("abcdefgh"))) == 8
    assert len(alive.seen) == 8


def test_work_is_balanced(servers: Servers) -> None:
    both = [servers.start(), servers.start()]
    with engine_for(*(server.url for server in both), max_connections=3) as engine:
        answers(engine, [f"row {index}" for index in range(200)])
    assert sum(len(server.seen) for server in both) == 200
    assert all(len(server.seen) > 50 for server in both)
    assert all(server.most_in_flight <= 3 for server in both)


def test_short_rows_go_around_a_server_that_holds_a_huge_one(servers: Servers) -> None:
    """Taking turns would give it half of them, and it has connections for all."""
    both = [servers.start(lambda prompt, _tries: "wait" if prompt == "huge" else None) for _ in range(2)]
    with engine_for(*(server.url for server in both)) as engine:
        engine.add(asked("huge", max_tokens=100_000))
        while not (busy := [server for server in both if server.in_flight]):
            engine.step()
        prompts = [f"row {index}" for index in range(40)]
        for prompt in prompts:
            engine.add(asked(prompt, max_tokens=8))
        found: dict[str, Output | Failure] = {}
        while len(found) < len(prompts):
            found |= {each.request_id: each for each in ended(engine.step())}
        servers.set(busy[0])
        assert text(drained(engine)["huge"]) == "<huge>"
    assert {key: text(each) for key, each in found.items()} == {prompt: text_for(prompt) for prompt in prompts}
    assert [len(server.seen) for server in both if server is not busy[0]] == [len(prompts)]


@pytest.mark.parametrize("dialect", ["triton", "kserve"])
def test_a_model_that_was_there_is_waited_for(servers: Servers, dialect: str) -> None:
    server = servers.start(lambda _prompt, tries: 404 if tries <= 3 else None)
    with engine_for(server.url, dialect=dialect) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"


# ── under the manager ────────────────────────────────────────────────────────────────────────────────────────────────


def test_requests_of_an_inference_process_that_is_killed_are_sent_again(machine: Machine, servers: Servers) -> None:
    held = {str(index) for index in range(8)}
    server = servers.start(lambda prompt, tries: "wait" if prompt in held and tries == 1 else None)
    client = machine.open(
        command=MANAGER_COMMAND, model="m", backend="endpoint", backend_options={"urls": server.url}, max_num_seqs=16
    )
    futures = {str(index): client.submit(str(index), SamplingParams(), request_id=str(index)) for index in range(40)}
    answered = len(futures) - len(held)
    eventually(
        lambda: server.in_flight == len(held) and sum(each.done() for each in futures.values()) == answered,
        "all but those that are held",
    )
    kill(machine.engine_pid())
    found = {name: future.result(PATIENCE) for name, future in futures.items()}
    assert {name: output.text for name, output in found.items()} == {name: text_for(name) for name in futures}
    assert all((output.num_generated, output.prompt_tokens) == (5, 3) for output in found.values())
    assert {prompt for prompt, tries in server.tries.items() if tries > 1} == held
    assert machine.model_status().restarts == 1


def test_a_key_that_is_withdrawn_in_mid_job_fails_the_job_at_once(machine: Machine, servers: Servers) -> None:
    server = servers.start(lambda prompt, _tries: 401 if prompt == "9" else None)
    client = machine.open(command=MANAGER_COMMAND, model="m", backend="endpoint", backend_options={"urls": server.url})
    futures = [client.submit(str(index), SamplingParams(), request_id=str(index)) for index in range(10)]
    with pytest.raises(ModelLost, match=r"answered 401: no 9; it refuses a request without a key"):
        futures[9].result(PATIENCE)
    eventually(lambda: not any(model.pids for model in machine.status().models), "the end of the engine")

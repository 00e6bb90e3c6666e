"""Answers that are streamed, with real managers and engines: whoever dies, each token comes once, and all of them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from millrace.model_manager.client import EngineClient
from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.wire.errors import RequestAborted
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import PATIENCE, Machine, in_the_end, kill
from tests.model_manager.manager.stand_in_engine import ANSWER, answer
from tests.waiting import eventually

TOKENS = 40
PARAMS = SamplingParams(max_tokens=TOKENS)
LONG = SamplingParams(max_tokens=1500)


@pytest.fixture(scope="module", autouse=True)
def _slow_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
        yield


class Stream:
    """The deltas of one request, and its future."""

    def __init__(
        self,
        client: EngineClient,
        prompt: list[int],
        params: SamplingParams = PARAMS,
        name: str = "a",
        *,
        may_be_cut: bool = False,
    ) -> None:
        self.deltas: dict[int, list[Delta]] = defaultdict(list)
        self.num_late = 0
        self.future: Future[Output] = Future()  # until it is submitted: the first deltas may be quicker
        self.future = client.submit(prompt, params, request_id=name, on_delta=self._take, may_be_cut=may_be_cut)

    def _take(self, delta: Delta) -> None:
        self.deltas[delta.index].append(delta)
        self.num_late += self.future.done()

    def until_under_way(self) -> None:
        """Some tokens have come; on a busy machine perhaps all."""
        eventually(lambda: self.future.done() or self._num_tokens() >= 3, "the first tokens")

    def _num_tokens(self) -> int:
        return sum(len(delta.token_ids) for delta in list(self.deltas[0]))

    def expect_whole(self) -> Output:
        result = self.future.result(PATIENCE)
        assert not self.num_late
        for index, choice in enumerate(result.choices or (result,)):
            assert "".join(delta.text for delta in self.deltas[index]) == choice.text
            assert [token for delta in self.deltas[index] for token in delta.token_ids] == choice.token_ids
        return result

    def expect_whole_and_held_up(self) -> bool:
        """Whether somebody died before it was done."""
        result = self.expect_whole()
        return any(each.setbacks for each in result.choices or (result,))


def test_an_answer_comes_as_it_is_generated(shipped: Machine) -> None:
    client = shipped.open(command=MANAGER_COMMAND, job="streams")

    def is_seen_before_its_end(name: str) -> bool:
        stream = Stream(client, [1, 2, 3], name=name)
        stream.until_under_way()
        was_done = stream.future.done()
        assert len(stream.expect_whole().token_ids) == TOKENS
        return not was_done and len(stream.deltas[0]) > 1

    in_the_end(is_seen_before_its_end)


def test_several_answers_come_side_by_side_with_their_log_probabilities(shipped: Machine) -> None:
    params = SamplingParams(max_tokens=TOKENS, n=2, logprobs=1)
    stream = Stream(shipped.open(command=MANAGER_COMMAND, job="several"), [1, 2, 3], params)
    result = stream.expect_whole()
    assert set(stream.deltas) == {0, 1}
    for index, choice in enumerate(result.choices):
        parts = [delta.logprobs for delta in stream.deltas[index] if delta.logprobs is not None]
        assert choice.logprobs is not None
        assert [token for part in parts for token in part.tokens] == choice.logprobs.tokens


def test_a_constrained_answer_that_its_budget_cuts_is_what_was_streamed_of_it(shipped: Machine) -> None:
    schema = {"properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}
    params = SamplingParams.parse({"max_tokens": TOKENS, "constraint": {"json_schema": schema}})
    result = Stream(shipped.open(command=MANAGER_COMMAND, job="cut"), [1, 2, 3], params).expect_whole()
    assert result.num_own_tokens is not None
    assert result.num_own_tokens >= TOKENS // 2


@pytest.mark.parametrize("dies", [False, True])
def test_a_constrained_answer_that_may_be_cut_streams_to_its_end_and_no_ending_replaces_it(
    machine: Machine, dies: bool
) -> None:
    schema = {"properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}
    params = SamplingParams.parse({"max_tokens": TOKENS, "constraint": {"json_schema": schema}})
    client = machine.open(command=MANAGER_COMMAND)

    def comes_in_small_parts(name: str) -> bool:
        stream = Stream(client, [1, 2, 3], params, name, may_be_cut=True)
        if dies:
            stream.until_under_way()
            kill(machine.engine_pid())
        result = stream.expect_whole()
        assert (result.finish_reason, result.is_cut, result.num_own_tokens) == (FinishReason.LENGTH, True, None)
        assert len(result.token_ids) == TOKENS
        most = max(len(delta.token_ids) for delta in stream.deltas[0])
        return bool(result.setbacks) is dies and most < TOKENS // 2

    in_the_end(comes_in_small_parts)


@pytest.mark.parametrize("n", [1, 2])
def test_an_engine_that_is_killed_in_mid_stream_costs_no_token(machine: Machine, n: int) -> None:
    client, params = machine.open(command=MANAGER_COMMAND), SamplingParams(max_tokens=TOKENS, n=n)

    def is_killed(name: str) -> bool:
        stream = Stream(client, [1, 2, 3], params, name)
        stream.until_under_way()
        kill(machine.engine_pid())
        return stream.expect_whole_and_held_up()

    attempts = in_the_end(is_killed)
    assert machine.model_status().restarts == attempts


@pytest.mark.parametrize("n", [1, 2])
def test_a_manager_that_is_killed_in_mid_stream_costs_no_token(machine: Machine, n: int) -> None:
    client, params = machine.open(command=MANAGER_COMMAND), SamplingParams(max_tokens=TOKENS, n=n, logprobs=0)

    def is_killed(name: str) -> bool:
        stream = Stream(client, [1, 2, 3], params, name)
        stream.until_under_way()
        manager = machine.status().pid
        kill(manager)
        return stream.expect_whole_and_held_up() and machine.status().pid != manager

    in_the_end(is_killed)


def test_a_client_that_attaches_in_mid_stream_gets_all_from_the_start(stand_in: Machine) -> None:
    with stand_in.held():
        first = Stream(stand_in.open(job="attaches"), [ANSWER, TOKENS], name="attaches")
        first.until_under_way()
        second = Stream(stand_in.open(job="attaches"), [ANSWER, TOKENS], name="attaches")
        eventually(lambda: second.deltas[0], "what came before it")
    for stream in (first, second):
        assert stream.expect_whole().token_ids == answer([ANSWER, TOKENS], TOKENS)
    assert len(second.deltas[0]) > 1


def test_who_joins_a_stream_of_the_same_client_gets_all_and_who_joins_a_quiet_request_gets_it_at_once(
    stand_in: Machine,
) -> None:
    client = stand_in.open(job="joins")
    with stand_in.held() as ten_more:
        first = Stream(client, [ANSWER, TOKENS], name="joins")
        quiet = client.submit([ANSWER, TOKENS, 1], PARAMS, request_id="b")
        first.until_under_way()
        second, third = Stream(client, [ANSWER, TOKENS], name="joins"), Stream(client, [ANSWER, TOKENS, 1], name="b")
        ten_more()
        eventually(lambda: second.deltas[0], "all so far, with what comes next")
    for stream in (first, second, third):
        stream.expect_whole()
    assert len(second.deltas[0]) > 1
    assert len(third.deltas[0]) == 1
    assert quiet.done()


def test_a_callers_function_that_fails_harms_nobody(stand_in: Machine) -> None:
    client = stand_in.open(job="fails")

    def fail(_: Delta) -> None:
        raise ValueError

    broken = client.submit([ANSWER, TOKENS], PARAMS, request_id="broken", on_delta=fail)
    Stream(client, [ANSWER, TOKENS]).expect_whole()
    assert broken.result(PATIENCE).token_ids == answer([ANSWER, TOKENS], TOKENS)


@pytest.mark.parametrize("by", ["future", "id"])
def test_a_cancelled_stream_gives_back_its_row_and_its_credit(shipped: Machine, by: str) -> None:
    client = shipped.open(command=MANAGER_COMMAND, job="cancelled")
    stream = Stream(client, [1, 2, 3], LONG)
    stream.until_under_way()
    if by == "future":
        assert stream.future.cancel()
    else:
        client.cancel("a")
        assert isinstance(stream.future.exception(0), RequestAborted)
    eventually(lambda: shipped.model_status().outstanding == 0, "the end of the request")
    eventually(lambda: client._session._ledger.in_use == 0, "its credit")
    assert stream.num_late <= 1, "one may be on its way as the request is cancelled"
    eventually(lambda: shipped.model_status().stats.running == 0, "its row")


def test_a_wait_for_a_credit_ends_when_its_request_is_cancelled(machine: Machine) -> None:
    client = machine.open(max_num_seqs=1)
    rows = [client.submit([ANSWER, 3000, index], LONG, request_id=str(index)) for index in range(2)]
    raised: dict[str, BaseException] = {}

    def wait(name: str, params: SamplingParams) -> None:
        try:
            client.submit([ANSWER, 5], params, request_id=name)
        except RequestAborted as error:
            raised[name] = error

    waits = [
        threading.Thread(target=wait, args=(name, SamplingParams(n=n))) for name, n in (("one", 1), ("several", 2))
    ]
    for thread in waits:
        thread.start()
    eventually(lambda: len(client._session._waits) == 2, "both waits")
    client.cancel("one")
    eventually(lambda: set(raised) == {"one"}, "the end of the first wait")
    client.cancel("several")
    for thread in waits:
        thread.join(PATIENCE)
    assert set(raised) == {"one", "several"}
    assert not any(row.done() for row in rows)


def test_an_urgent_request_of_a_new_client_is_answered_before_any_row_of_a_full_engine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.1")
    job = machine.open(command=MANAGER_COMMAND, max_num_seqs=4)
    rows: list[Future[Output]] = []

    def fill() -> None:
        try:
            for index in range(1000):
                rows.append(job.submit([1, 2, index % 500], LONG, request_id=str(index)))
        except RequestAborted:
            pass

    filling = threading.Thread(target=fill)
    filling.start()
    eventually(lambda: job._session._waits, "all credits in use")
    client = machine.open(command=MANAGER_COMMAND, max_num_seqs=4)
    urgent = SamplingParams(max_tokens=5, priority=-1)
    streams = [Stream(client, [7, index], urgent, f"urgent {index}") for index in range(6)]
    for stream in streams:
        stream.expect_whole()
    assert not any(row.done() for row in rows)
    job.close()
    filling.join(PATIENCE)

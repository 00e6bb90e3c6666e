"""EngineClient against a real manager: what callers see while nothing goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.model_manager.client import EngineClient
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.client.session import WouldWait
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest, ModelNotFound, PromptTooLong, RequestAborted
from millrace.model_manager.wire.request import FinishReason, Output, Pooling, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.transport import MAX_FRAME_BYTES
from tests.model_manager.manager.machine import MANAGER, PATIENCE, SETTINGS, Machine
from tests.model_manager.manager.stand_in_engine import ANSWER, FAIL, answer
from tests.waiting import eventually

SHORT = SamplingParams(max_tokens=5)


def test_the_shipped_manager_and_torch_free_engine_answer_text(shipped: Machine) -> None:
    client = shipped.open(command=MANAGER_COMMAND, job="text")
    future = client.submit("What is the capital of France?", SHORT, request_id="a")
    generation = future.result(PATIENCE)
    assert len(generation.token_ids) == 5
    assert generation.finish_reason is FinishReason.LENGTH
    assert generation.text == client.tokenizer.decode(generation.token_ids).rstrip("\ufffd")
    assert generation.latency >= generation.timings.finished >= generation.timings.first_token >= 0


def test_clients_without_a_job_are_jobs_of_their_own_each_with_its_weight(machine: Machine) -> None:
    weights = [2.0, 3.0]
    for weight in weights:
        client = machine.open(msgspec.structs.replace(SETTINGS, weight=weight), job="")
        client.submit([1, 2, 3], SHORT, request_id=f"of weight {weight}").result(PATIENCE)
    assert sorted(job.weight for job in machine.status().jobs if job.finished == 1) == weights


def test_stop_tokens_end_the_shipped_engine_too(shipped: Machine) -> None:
    client = shipped.open(command=MANAGER_COMMAND, job="stop")
    tokens = client.submit([1, 2, 3], SHORT, request_id="a").result(PATIENCE).token_ids
    params = SamplingParams(max_tokens=5, stop_token_ids=(tokens[2],))
    stopped = client.submit([1, 2, 3], params, request_id="b").result(PATIENCE)
    assert stopped.token_ids == tokens[: tokens.index(tokens[2]) + 1]
    assert stopped.stop_reason == tokens[2]
    assert stopped.text == client.tokenizer.decode(stopped.token_ids[:-1]).rstrip("\ufffd")


def test_a_draft_model_is_found_before_any_engine_is_told_of_it(machine: Machine) -> None:
    with pytest.raises(ModelNotFound, match=r"^draft_model: .*absent: no such folder"):
        machine.open(speculation="draft_model", draft_model=str(machine.model / "absent"))
    client = machine.open(speculation="draft_model", draft_model=EMBEDDED_MODEL)
    assert (Path(client._session._config.draft_model or "") / "config.json").is_file()


UNSENDABLE: dict[str, dict[str, Any]] = {
    "a number": {"messages": [{"role": "user", "content": "a", "more": 10**30}]},
    "no UTF-8": {"text": "\ud800"},
    "no JSON": {"messages": [{"role": "user", "content": object()}]},
    "too large": {"text": "x" * (MAX_FRAME_BYTES + 1)},
}


@pytest.mark.parametrize("case", UNSENDABLE)
def test_a_request_that_no_message_can_hold_fails_alone(shipped: Machine, case: str) -> None:
    client = shipped.open(command=MANAGER_COMMAND, job=case)
    good = client.submit([1, 2, 3], SHORT, request_id=f"{case}: good")
    with pytest.raises(InvalidRequest, match="the request cannot be sent to the engine: "):
        client._session.send(Request(f"{case}: bad", [1], SHORT, **UNSENDABLE[case]))
    again = client.submit([1, 2, 3], SHORT, request_id=f"{case}: bad")
    assert good.result(PATIENCE).token_ids == again.result(PATIENCE).token_ids


def test_several_answers_to_a_prompt_are_one_result_and_one_request_of_its_job(shipped: Machine) -> None:
    client = shipped.open(command=MANAGER_COMMAND, job="several")
    params = SamplingParams(max_tokens=5, n=3)
    first, again = (client.submit([1, 2, 3], params, request_id="a").result(PATIENCE) for _ in range(2))
    assert [len(choice.token_ids) for choice in first.choices] == [5, 5, 5]
    assert [choice.text for choice in again.choices] == [choice.text for choice in first.choices]
    done = shipped.job("several")
    assert (done.finished, done.prompt_tokens, done.generated_tokens) == (1, 3, 15)


def test_an_answer_among_several_cannot_be_taken_for_another_callers_request(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    client = machine.open(command=MANAGER_COMMAND)
    several = client.submit([1, 2, 3], SamplingParams(max_tokens=5, n=2), request_id="a")
    other = client.submit([4, 5], SHORT, request_id="a#1")
    scores = client.score([7, 8], [[9], [10]], request_id="b")
    for taken in ("a\x1f1", "b\x1f1"):
        with pytest.raises(InvalidRequest, match="request_id"):
            client.embed([4, 5], request_id=taken)
    assert len(several.result(PATIENCE).choices) == 2
    assert other.result(PATIENCE).prompt_tokens == 2
    found = [score.prompt_logprobs for score in scores.result(PATIENCE)]
    assert [each and each.token_ids for each in found] == [[9], [10]]


def test_cancelling_ends_all_answers(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.05")
    client = machine.open(command=MANAGER_COMMAND)
    future = client.submit([1, 2, 3], SamplingParams(max_tokens=1000, n=3), request_id="a")
    client.cancel("a")
    with pytest.raises(RequestAborted):
        future.result(PATIENCE)
    eventually(lambda: machine.status().models[0].outstanding == 0)


def test_continuations_are_scored_and_prompts_embedded(shipped: Machine) -> None:
    client = shipped.open(command=MANAGER_COMMAND, job="scored")
    first, again = (client.score([7, 8, 9], ["a b", "c"], request_id="a").result(PATIENCE)[0] for _ in range(2))
    ids = client.tokenizer.encode("a b", add_special_tokens=False)
    scored = first.prompt_logprobs
    assert scored is not None
    assert scored.token_ids == ids
    assert len(scored.logprobs) == len(scored.greedy) == len(ids)
    assert first.prompt_tokens == 3 + len(ids)
    assert again.prompt_logprobs == scored
    with pytest.raises(InvalidRequest, match="at least one"):
        client.score([7], [], request_id="b")
    pooled: tuple[Pooling, ...] = ("last", "mean")
    vectors = [client.embed([7, 8, 9], request_id=p, pooling=p).result(PATIENCE).vector for p in pooled]
    assert [sum(value**2 for value in vector) for vector in vectors] == pytest.approx([1.0, 1.0])
    done = shipped.job("scored")
    assert (done.finished, done.generated_tokens) == (3, 0)


def test_prompt_logprobs_come_with_a_generation(shipped: Machine) -> None:
    params = SamplingParams(max_tokens=2, prompt_logprobs=3)
    generation = (
        shipped.open(command=MANAGER_COMMAND, job="logprobs").submit([7, 8, 9], params, request_id="a").result(PATIENCE)
    )
    assert generation.prompt_logprobs is not None
    assert [(each.token_id, len(each.top_logprobs)) for each in generation.prompt_logprobs.tokens] == [(8, 3), (9, 3)]


def test_an_id_means_one_task(machine: Machine) -> None:
    client = machine.open(command=MANAGER_COMMAND)
    with machine.stopped():
        client.embed([1, 2, 3], request_id="a")
        with pytest.raises(InvalidRequest, match="'a' is outstanding for other work"):
            client.embed([1, 2, 3], request_id="a", pooling="mean")


def test_the_same_id_twice_is_answered_twice_and_computed_once(stand_in: Machine) -> None:
    client = stand_in.open(job="twice")
    futures = [client.submit([ANSWER, 5], SHORT, request_id="a") for _ in range(2)]
    assert [future.result(PATIENCE).token_ids for future in futures] == [answer([ANSWER, 5], 5)] * 2
    assert client.submit([ANSWER, 5], SHORT, request_id="a").result(PATIENCE).token_ids == answer([ANSWER, 5], 5)
    done = stand_in.job("twice")
    assert (done.finished, done.prompt_tokens, done.generated_tokens) == (1, 2, 5)


def test_an_id_that_is_outstanding_for_another_prompt_is_refused(machine: Machine) -> None:
    client = machine.open()
    with machine.held():
        first = client.submit([ANSWER, 20], SHORT, request_id="a")
        with pytest.raises(InvalidRequest, match="'a'"):
            client.submit([ANSWER, 21], SHORT, request_id="a")
    assert first.result(PATIENCE).token_ids == answer([ANSWER, 20], 20)


def test_a_request_that_fails_fails_its_future_alone(stand_in: Machine) -> None:
    client = stand_in.open(job="fails")
    bad = client.submit([FAIL, 5], SHORT, request_id="bad")
    good = client.submit([ANSWER, 5], SHORT, request_id="good")
    with pytest.raises(InvalidRequest, match="asked to fail"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE).token_ids


@pytest.mark.parametrize(
    ("prompt", "error"),
    [([], InvalidRequest), ([5000], InvalidRequest), ([-1], InvalidRequest), ([1] * 4096, PromptTooLong)],
)
def test_what_can_never_run_is_refused_at_once(stand_in: Machine, prompt: list[int], error: type[Exception]) -> None:
    client = stand_in.open(job="never")
    with pytest.raises(error):
        client.submit(prompt, SHORT, request_id="a")


def test_text_goes_through_the_chat_template_unless_told_not_to(stand_in: Machine) -> None:
    plain = stand_in.open(job="chat")
    with EngineClient.open(
        stand_in.config(), manager=SETTINGS, runtime=stand_in.runtime, manager_command=MANAGER
    ) as chatting:
        if not chatting.tokenizer.has_chat_template:
            pytest.skip("the embedded model has no chat template")
        messages = [{"role": "user", "content": "hello"}]
        assert (
            chatting._encoding.fields("hello", plain.info)
            == chatting._encoding.fields(messages, plain.info)
            == plain._encoding.fields(messages, plain.info)
        )
        assert plain._encoding.fields("hello", plain.info) == {"prompt_token_ids": plain.tokenizer.encode("hello")}


def test_cancelling_fails_the_future_at_once_and_the_id_can_be_used_again(machine: Machine) -> None:
    client = machine.open()
    with machine.held():
        first = client.submit([ANSWER, 20], SHORT, request_id="a")
        client.cancel("a")
        with pytest.raises(RequestAborted):
            first.result(0)
        again = client.submit([ANSWER, 20], SHORT, request_id="a")
    assert again.result(PATIENCE).token_ids == answer([ANSWER, 20], 20)
    client.cancel("unknown")


def test_a_future_that_its_holder_cancels_ends_the_request_unless_others_wait(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    client = machine.open()
    with machine.held():
        first, second = (client.submit([ANSWER, 20], SHORT, request_id="a") for _ in range(2))
        alone = client.submit([ANSWER, 3000], SHORT, request_id="b")
        assert first.cancel()
        assert alone.cancel()
    assert second.result(PATIENCE).token_ids == answer([ANSWER, 20], 20)
    eventually(lambda: machine.model_status().outstanding == 0, "the end of the cancelled request")


def test_closing_aborts_what_is_outstanding_and_wakes_who_waits_for_a_credit(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.1")
    client = machine.open(max_num_seqs=1)
    outcomes: list[BaseException | None] = []
    futures: list[Future[Output]] = []

    def flood() -> None:
        try:
            for index in range(50):
                futures.append(client.submit([ANSWER, 1000, index], SHORT, request_id=str(index)))
        except RequestAborted as error:
            outcomes.append(error)

    thread = threading.Thread(target=flood)
    thread.start()
    eventually(lambda: len(futures) == 2, "both credits in use")
    client.close()
    thread.join(PATIENCE)
    assert len(outcomes) == 1
    assert all(isinstance(future.exception(0), RequestAborted) for future in futures)
    with pytest.raises(RequestAborted):
        client.submit([ANSWER, 1], SHORT, request_id="late")


def test_a_callback_may_not_submit(stand_in: Machine) -> None:
    client = stand_in.open(job="callback")
    raised: list[BaseException] = []
    done = threading.Event()

    def submit_again(_future: object) -> None:
        try:
            client.submit([ANSWER, 1], SHORT, request_id="again")
        except RuntimeError as error:
            raised.append(error)
        done.set()

    client.submit([ANSWER, 3], SHORT, request_id="a").add_done_callback(submit_again)
    assert done.wait(PATIENCE)
    assert len(raised) == 1


def test_no_more_is_outstanding_than_the_engine_can_hold_and_look_ahead(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.01")
    client = machine.open(max_num_seqs=4)
    outstanding: list[int] = []
    futures = []
    for index in range(40):
        futures.append(client.submit([ANSWER, 5, index], SHORT, request_id=str(index)))
        outstanding.append(machine.model_status().outstanding)  # an answer's credit is free before its future is done
    assert max(outstanding) <= 8
    assert all(future.result(PATIENCE) for future in futures)


def write_adapter(folder: Path) -> None:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def generated(client: EngineClient, params: SamplingParams, name: str) -> object:
    return client.submit([7, 8, 9], params, request_id=name).result(PATIENCE).token_ids


def embedded(client: EngineClient, params: SamplingParams, name: str) -> object:
    return client.embed([7, 8, 9], params, request_id=name).result(PATIENCE).vector


def scored(client: EngineClient, params: SamplingParams, name: str) -> object:
    (score,) = client.score([7, 8], [[9, 10]], params, request_id=name).result(PATIENCE)
    assert score.prompt_logprobs is not None
    return score.prompt_logprobs.logprobs


@pytest.mark.parametrize(("serves", "source"), [(True, "server_answers"), (False, "job")])
@pytest.mark.parametrize("ask", [generated, embedded, scored])
def test_each_task_looks_up_its_adapter_and_counts_for_who_asks(
    shipped: Machine,
    tmp_path: Path,
    ask: Callable[[EngineClient, SamplingParams, str], object],
    serves: bool,
    source: str,
) -> None:
    write_adapter(tmp_path / "adapter")
    with EngineClient.open(
        shipped.config(max_loras=1), manager=SETTINGS, job="j", serves=serves, runtime=shipped.runtime
    ) as client:

        def counted() -> dict[str, int]:
            (model,) = (each for each in shipped.status().models if each.key == client.key)
            return {name: sum(counts.answers.values()) for name, counts in model.requests.items()}

        before = counted().get(source, 0), sum(counted().values())
        adapted = SHORT.parse({"max_tokens": 5, "adapter": str(tmp_path / "adapter")})
        name = f"{ask.__name__} {serves}"
        assert ask(client, SHORT, f"{name} alone") != ask(client, adapted, f"{name} adapted")
        with pytest.raises(InvalidRequest, match="adapter /no/adapter: no such folder"):
            ask(client, SamplingParams(adapter="/no/adapter"), f"{name} refused")
        assert (counted()[source], sum(counted().values())) == (before[0] + 2, before[1] + 2)


def test_who_may_not_wait_brings_the_adapter_that_was_found(machine: Machine) -> None:
    folder = machine.folder / "adapter"
    write_adapter(folder)
    client = machine.open(max_loras=1)
    params = SamplingParams(max_tokens=3, adapter=str(folder))
    with pytest.raises(WouldWait):
        client.submit([ANSWER, 3, 1], params, request_id="a", may_wait=False)
    with pytest.raises(WouldWait):
        client.embed([ANSWER, 3, 1], params, request_id="a", may_wait=False)
    found = client.find_adapter(str(folder))
    assert found is not None
    assert client.submit([ANSWER, 3, 1], SHORT, request_id="first").result(PATIENCE), "there are credits"
    (folder / "adapter_config.json").unlink()  # nothing is read any more
    future = client.submit([ANSWER, 3, 1], params, request_id="a", may_wait=False, adapter=found)
    client.flush_at_once()
    assert future.result(PATIENCE).token_ids == answer([ANSWER, 3, 1], 3)
    assert client.find_adapter("") is None


def test_many_threads_may_submit(stand_in: Machine) -> None:
    client = stand_in.open(job="threads")
    found: dict[str, list[int]] = {}

    def work(number: int) -> None:
        for index in range(50):
            name = f"{number}-{index}"
            found[name] = client.submit([ANSWER, 3, index], SHORT, request_id=name).result(PATIENCE).token_ids

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(found) == 400
    assert all(tokens == answer([ANSWER, 3, int(name.split("-")[1])], 3) for name, tokens in found.items())


def test_settings_reach_the_manager(machine: Machine) -> None:
    client = machine.open(ManagerConfig(linger=0.5, lookahead=0.0), max_num_seqs=4)
    eventually(lambda: client._session._limit == 4, "a credit a running sequence")


def test_a_chat_template_that_is_asked_for_and_not_there_is_refused_before_anything_starts(machine: Machine) -> None:
    settings_file = machine.model / "tokenizer_config.json"
    fields = json.loads(settings_file.read_text())
    del fields["chat_template"]
    settings_file.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=r"chat=True \(--chat always\)"):
        EngineClient.open(machine.config(), runtime=machine.runtime, chat=True)
    assert not machine.processes()

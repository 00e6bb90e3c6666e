"""An engine over a library that gives tokens in bursts, and past each ending: its answers equal our own loop's."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.backends.hosted import Event, HostedEngine
from millrace.model_manager.engine.fake import FakeEngine
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest, PromptTooLong, RequestError
from millrace.model_manager.wire.request import Failure, FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.scheduling.test_stopping import FOLDER

CONFIG = ModelConfig(backend="fake", max_num_seqs=8)


class Bursts:
    """A library that has FakeEngine's tokens, knows no stop, and tells them a few at a time."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.rest: dict[str, list[int]] = {}
        self.cancelled: list[str] = []
        self.constraints: list[Any] = []

    def submit(self, sequence: Sequence, params: SamplingParams) -> None:
        if params.constraint is not None:
            self.constraints.append(params.constraint)
        most = sequence.conditions.max_tokens
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        free = Request("free", prompt, SamplingParams(max_tokens=most, ignore_eos=True))
        whole = run(FakeEngine.load(CONFIG, FOLDER), [free])["free"].token_ids
        self.rest[sequence.request_id] = whole[sequence.num_output_tokens :]

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.rest.pop(request_id, None)

    def poll(self) -> list[Event]:
        events = []
        for name, tokens in list(self.rest.items()):
            count = self.random.randint(0, 4)
            told, self.rest[name] = tokens[:count], tokens[count:]
            if not self.rest[name]:
                del self.rest[name]
            events.append(Event(name, told, finished=name not in self.rest))
        return events

    def num_running(self) -> int:
        return len(self.rest)


class Broken(Bursts):
    """It fails one request in the middle."""

    def poll(self) -> list[Event]:
        if "bad" in self.rest:
            del self.rest["bad"]
            return [Event("bad", error=InvalidRequest("bad: is what this library does not take"))]
        return super().poll()


def hosted(library: Bursts, **more: Any) -> HostedEngine:
    info = FakeEngine.load(CONFIG, FOLDER).info
    return HostedEngine(info, library, StopRules.load(FOLDER, info.eos_token_ids), **more)


def test_an_output_that_does_not_meet_its_constraint_is_no_answer() -> None:
    info = FakeEngine.load(CONFIG, FOLDER).info
    seen: list[list[int]] = []

    def meets(_constraint: Constraint, token_ids: list[int]) -> bool:
        seen.append(token_ids)
        return len(seen) == 1

    engine = HostedEngine(info, Bursts(), StopRules.load(FOLDER, info.eos_token_ids), meets)
    constrained = SamplingParams.parse(
        {"max_tokens": 30, "constraint": {"regex": ".*"}, "stop_token_ids": [*range(400)]}
    )
    one, other = run(engine, [Request(name, [1], constrained) for name in ("one", "other")]).values()
    assert isinstance(one, Output)
    assert seen[0] == one.token_ids
    assert isinstance(other, Failure)
    assert (other.error.kind, other.error.message) == (
        "ConstraintNotMet",
        "the output does not meet its constraint, which the library did not hold it to",
    )


def run(engine: Any, requests: list[Request]) -> dict[str, Any]:
    for request in requests:
        engine.add(request)
    answers: dict[str, Output | Failure] = {}
    while engine.has_work():
        result = engine.step()
        answers |= {answer.request_id: answer for answer in (*result.outputs, *result.failures)}
        assert not answers.keys() & result.new_token_ids.keys(), "progress of a request that has ended"
    return answers


PARAMS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 30)},
    optional={
        "stop": st.lists(st.text("aeios ", min_size=1, max_size=2), min_size=1, max_size=2),
        "stop_token_ids": st.lists(st.integers(0, 400), min_size=1, max_size=40),
        "include_stop_str_in_output": st.booleans(),
    },
)


@settings(max_examples=100, deadline=None)
@given(asked=st.lists(st.tuples(st.lists(st.integers(0, 300), min_size=1, max_size=3), PARAMS), max_size=5), seed=...)
def test_answers_are_those_of_a_loop_that_makes_each_token(asked: list[Any], seed: int) -> None:
    requests = [Request(str(n), ids, SamplingParams.parse(params)) for n, (ids, params) in enumerate(asked)]
    expected = run(FakeEngine.load(CONFIG, FOLDER), requests)
    found = run(hosted(Bursts(seed)), requests)
    assert {name: told(each) for name, each in found.items()} == {name: told(each) for name, each in expected.items()}


def told(output: Output) -> tuple[Any, ...]:
    return output.token_ids, output.finish_reason, output.stop_reason, output.prompt_tokens


def test_a_request_goes_on_from_the_tokens_of_an_engine_that_died() -> None:
    whole = run(hosted(Bursts()), [Request("a", [1, 2], SamplingParams(max_tokens=9))])["a"].token_ids
    resumed = Request("a", [1, 2], SamplingParams(max_tokens=9), output_token_ids=whole[:4])
    assert run(hosted(Bursts()), [resumed])["a"].token_ids == whole
    over = msgspec.structs.replace(resumed, output_token_ids=whole)
    assert run(hosted(Bursts()), [over])["a"].finish_reason is FinishReason.LENGTH


SEEDED = SamplingParams(max_tokens=30, seed=1, temperature=0.5)
SAMPLED = SamplingParams(max_tokens=30, temperature=0.5)
GREEDY = SamplingParams(max_tokens=30, seed=1)


@pytest.mark.parametrize(
    ("back_end", "told"),
    [
        ("ctranslate2", {"seeded", "sampled", "greedy", "frequency", "shown"}),
        ("vllm", {"sampled", "greedy", "repetition", "shown"}),
        ("openvino", {"greedy", "repetition", "shown"}),
        ("llama_cpp", {"shown"}),
    ],
)
def test_only_requests_that_the_next_engine_goes_on_with_tell_their_tokens(back_end: str, told: set[str]) -> None:
    """A stream's tokens were shown, and stay."""
    engine = hosted(Bursts(seed=3), goes_on=BACKENDS[back_end].goes_on)
    params = {"seeded": SEEDED, "sampled": SAMPLED, "greedy": GREEDY}
    for name in ("frequency", "repetition"):  # an engine that counts its own output alone would forget the tokens
        params[name] = SamplingParams.parse({"max_tokens": 30, f"{name}_penalty": 1.5})
    for name, each in params.items():
        engine.add(Request(name, [1], each))
    engine.add(Request("shown", [1], SEEDED, stream=True))
    engine.add(Request("constrained", [1], SamplingParams.parse({"max_tokens": 30, "constraint": {"regex": "a+"}})))
    found: set[str] = set()
    while engine.has_work():
        found |= engine.step().new_token_ids.keys()
    assert found == told


def test_what_has_ended_is_cancelled_in_the_library_and_nothing_else() -> None:
    library = Bursts()
    first = run(hosted(Bursts()), [Request("a", [1], SamplingParams(max_tokens=3))])["a"].token_ids
    stop = SamplingParams(max_tokens=30, stop_token_ids=tuple(first[1:2]))
    run(hosted(library), [Request("a", [1], stop), Request("b", [2], SamplingParams(max_tokens=3))])
    assert library.cancelled == ["a"]


def test_an_abort_gives_what_there_is_and_frees_the_library() -> None:
    library = Bursts(seed=3)
    engine = hosted(library)
    engine.add(Request("a", [1], SamplingParams(max_tokens=100)))
    told_so_far: list[int] = []
    while len(told_so_far) < 5:
        told_so_far += engine.step().new_token_ids.get("a", [])
    engine.abort("a")
    engine.abort("unknown")
    (output,) = engine.step().outputs
    assert (output.finish_reason, output.token_ids) == (FinishReason.ABORT, told_so_far)
    assert not engine.has_work()
    assert not library.rest


def test_a_failure_of_one_request_is_its_own() -> None:
    answers = run(hosted(Broken()), [Request(name, [1], SamplingParams(max_tokens=4)) for name in ("a", "bad", "b")])
    assert isinstance(answers["bad"], Failure)
    assert len(answers["a"].token_ids) == len(answers["b"].token_ids) == 4


def test_a_constraint_is_the_librarys_and_an_output_that_it_leaves_unfinished_is_no_answer() -> None:
    library = Bursts()
    params = SamplingParams.parse({"max_tokens": 4, "constraint": {"regex": "a+"}})
    answer = run(hosted(library), [Request("a", [1], params)])["a"]
    assert library.constraints == [params.constraint]
    assert isinstance(answer, Failure)
    assert answer.error.kind == "ConstraintNotMet"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request("a", [], SamplingParams()), InvalidRequest),
        (Request("a", [10**6], SamplingParams()), InvalidRequest),
        (Request("a", [1] * 5000, SamplingParams()), PromptTooLong),
        (Request("a", [1], SamplingParams.parse({"constraint": {"json_schema": {"type": "nothing"}}})), InvalidRequest),
    ],
)
def test_what_can_never_run_is_refused_before_the_library_sees_it(request_: Request, error: type[RequestError]) -> None:
    library = Bursts()
    with pytest.raises(error):
        hosted(library).add(request_)
    assert not library.rest

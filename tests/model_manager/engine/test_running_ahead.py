"""A step that is launched before the tokens of the one before it are known changes no answer.

The device here computes when it is told; what it computed comes to the engine only when that asks for it, and `Order`
notes when. test_engine.py and test_pressure.py have arrivals, aborts, preemptions and shared beginnings run ahead too.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.interface import StepInput, StepOutput
from millrace.model_manager.engine.sampling.logit_rows import SamplingRows
from millrace.model_manager.engine.sampling.sampler import LaunchedSamples, Sampler, launch_by_torch
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import FinishReason, Output, Request
from tests.model_manager.engine.cuda.test_graphs import FakeCapture, _runners
from tests.model_manager.engine.drafting import Fixed, speculate, unrestrained
from tests.model_manager.engine.history_runner import (
    EOS,
    VOCAB_SIZE,
    EngineUnderTest,
    HistoryRunner,
    reference_tokens,
    request,
)
from tests.model_manager.engine.speculation.test_drafts import letters
from tests.model_manager.engine.whole_engines import outputs_of
from tests.model_manager.model_infos import model_info


class Order(HistoryRunner):
    """Keeps what is launched and what is taken in, in the order in which it happens."""

    def __init__(self, num_blocks: int = 64) -> None:
        super().__init__(num_blocks, runs_ahead=True)
        self.events: list[str] = []

    def execute(self, step: StepInput) -> StepOutput:
        self.events.append("launch")
        return super().execute(step)


class NotingSampler(Sampler):
    """Samples with torch, as on a GPU, and notes what it does."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def launch(self, logits: torch.Tensor, rows: SamplingRows) -> LaunchedSamples:
        launched = launch_by_torch(logits, rows)

        def get() -> Any:
            self._events.append("take")
            return launched.get()

        return LaunchedSamples(launched.token_ids, get)


def ordered(**settings: Any) -> tuple[EngineUnderTest, list[str]]:
    runner = Order()
    under_test = EngineUnderTest(runner, stop_rules=StopRules(frozenset([EOS]), letters()), **settings)
    under_test.engine._sampler = NotingSampler(runner.events)
    return under_test, runner.events


def in_turn(count: int) -> list[str]:
    return ["launch", "take"] * count


def test_the_next_step_is_launched_before_the_tokens_of_the_last_are_taken_in() -> None:
    under_test, events = ordered()
    asked = request(max_tokens=4)
    (output,) = under_test.run(asked)
    assert output.token_ids == reference_tokens(asked, 256)
    assert events == ["launch", "launch", "take", "launch", "take", "launch", "take", "take"]


def test_the_token_of_a_sequence_that_had_ended_is_thrown_away() -> None:
    expected = reference_tokens(request(max_tokens=9), 256)
    under_test, events = ordered()
    (output,) = under_test.run(request(max_tokens=9, stop_token_ids=[expected[3]]))
    assert (output.token_ids, output.stop_reason) == (expected[:4], expected[3])
    assert events.count("launch") == 4 + 1
    assert under_test.engine.stats().generated_tokens == 4


def test_a_sequence_at_its_length_has_no_further_step() -> None:
    under_test, events = ordered()
    under_test.run(request("a", max_tokens=3), request("b", max_tokens=5))
    assert [len(step.token_ids) for step in under_test.runner.steps] == [6, 2, 2, 1, 1]
    assert events.count("take") == 5


@pytest.mark.parametrize(
    "params",
    [{"repetition_penalty": 1.3}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"bad_words": ["cde"]}],
    ids=lambda params: next(iter(params)),
)
def test_what_samples_by_the_tokens_so_far_waits_for_them(params: dict[str, Any]) -> None:
    under_test, events = ordered()
    under_test.run(request(max_tokens=5, **params))
    assert events == in_turn(5)


def test_a_step_with_drafts_is_taken_in_at_once() -> None:
    under_test, events = ordered()
    speculate(under_test, Fixed(1, 2), unrestrained(2))
    asked = request(max_tokens=6)
    (output,) = under_test.run(asked)
    assert output.token_ids == reference_tokens(asked, 256)
    assert "launch launch" not in " ".join(events)


def test_a_step_that_reads_a_prompt_is_taken_in_at_once() -> None:
    under_test, events = ordered()
    under_test.run(request(max_tokens=3, prompt_logprobs=1))
    assert events == ["launch", "take", "launch", "launch", "take", "take"]


def test_a_token_that_is_being_sampled_when_the_deadline_passes_came_in_time() -> None:
    under_test, _ = ordered()
    under_test.engine.add(request(max_tokens=50, deadline=5.0))
    under_test.step()
    assert under_test.progress == {}
    under_test.clock.now += 6.0
    under_test.step()
    assert under_test.failures == {}
    assert under_test.outputs["a"].finish_reason is FinishReason.DEADLINE
    assert under_test.outputs["a"].token_ids == reference_tokens(request(max_tokens=1), 256)


def test_an_id_may_come_again_while_a_token_of_its_first_sequence_is_on_its_way() -> None:
    under_test, events = ordered()
    under_test.engine.add(request(max_tokens=50))
    for _ in range(3):
        under_test.step()
    under_test.engine.abort("a")
    again = request(prompt=[9, 9], max_tokens=2)
    under_test.engine.add(again)
    under_test.step()
    assert under_test.outputs.pop("a").token_ids == reference_tokens(request(max_tokens=2), 256)
    assert under_test.finish()["a"].token_ids == reference_tokens(again, 256)
    assert events.count("launch") == events.count("take") == 3 + 2


def test_a_launched_step_is_work_though_nobody_is_left() -> None:
    under_test, events = ordered()
    under_test.engine.add(request(max_tokens=50))
    under_test.step()
    under_test.engine.abort("a")
    under_test.engine._ended.clear()
    assert under_test.engine.has_work()
    under_test.step()
    assert not under_test.engine.has_work()
    assert events == ["launch", "take"]


def test_a_block_is_shared_only_once_the_logits_after_it_are_seen() -> None:
    """The step in which the sixteenth token is computed is launched, and what it gives is not finite."""
    prompt = [7] * 10
    runner = HistoryRunner(broken=lambda history: len(history) == 16 and history[:10] == prompt, runs_ahead=True)
    under_test = EngineUnderTest(runner)
    under_test.engine.add(request("bad", prompt, max_tokens=20))
    for _ in range(7):
        under_test.step()
    known = prompt + under_test.progress["bad"]
    assert runner.steps[-1].context_lens.tolist() == [16] == [len(known)]
    (after,) = under_test.run(request("after", [*known, 1], max_tokens=1))
    assert under_test.failures == {"bad": "NonFiniteLogits"}
    assert after.cached_tokens == 8


PARAMS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 20), "temperature": st.sampled_from([0.0, 1.0])},
    optional={
        "ignore_eos": st.just(False),
        "stop_token_ids": st.lists(st.integers(1, VOCAB_SIZE - 1), max_size=3),
        "stop": st.lists(st.text("abcdefgh", min_size=1, max_size=2), min_size=1, max_size=2),
        "min_tokens": st.integers(1, 6),
        "logprobs": st.integers(0, 3),
        "prompt_logprobs": st.integers(0, 2),
        "frequency_penalty": st.just(1.0),
        "repetition_penalty": st.just(1.5),
        "bad_words": st.just(["b", "cd"]),
        "logit_bias": st.just({"3": 2.0}),
        "allowed_token_ids": st.just([1, 2, 3, 4, 5, 9]),
        "top_p": st.just(0.7),
    },
)
ASKED = st.lists(st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=30), PARAMS), min_size=1, max_size=8)


@given(asked=ASKED, num_blocks=st.integers(6, 24), gap=st.integers(0, 4))
@settings(max_examples=60)
def test_whatever_is_asked_the_answers_are_those_of_one_step_after_the_other(
    asked: list[tuple[list[int], dict[str, Any]]], num_blocks: int, gap: int
) -> None:
    requests = []
    for number, (prompt, params) in enumerate(asked):
        whole = {"ignore_eos": True, **params}
        whole["min_tokens"] = min(whole.get("min_tokens", 0), whole["max_tokens"])
        requests.append(request(str(number), prompt, **whole))
    ahead, waiting = (answers(requests, num_blocks, gap, runs_ahead) for runs_ahead in (True, False))
    assert ahead == waiting


def answers(requests: list[Request], num_blocks: int, gap: int, runs_ahead: bool) -> tuple[dict[str, Any], Any]:
    """What becomes of requests; one arrives every `gap` steps."""
    runner = HistoryRunner(num_blocks, 8, 60, runs_ahead=runs_ahead)
    under_test = EngineUnderTest(runner, stop_rules=StopRules(frozenset([EOS]), letters()))
    under_test.engine._sampler = NotingSampler([])
    for asked in requests:
        if len(asked.prompt_token_ids) < under_test.engine.max_len:
            under_test.engine.add(asked)
        for _ in range(gap):
            under_test.step()
    return {name: answer(output) for name, output in under_test.finish().items()}, under_test.failures


def answer(output: Output) -> tuple[Any, ...]:
    return output.token_ids, output.finish_reason, output.stop_reason, output.logprobs, output.prompt_logprobs


@pytest.mark.parametrize("captured", [False, True], ids=["launched", "captured"])
def test_a_model_over_placed_steps_takes_its_tokens_where_they_were_sampled(captured: bool) -> None:
    placed, plain, _ = _runners()
    if captured:
        placed.capture(FakeCapture(), 8)
    requests = [request(str(n), list(range(2, 4 + 5 * n)), max_tokens=6 + 3 * n) for n in range(4)]
    placed.runs_ahead = plain.runs_ahead = True
    config = ModelConfig(max_num_seqs=4, max_num_batched_tokens=16)
    wanted, *found = [
        generated(runner, requests, config, max_model_len=64, num_blocks=40, block_size=8)
        for runner in (_runners()[1], placed, plain)
    ]
    assert found == 2 * [wanted]


def generated(runner: Any, requests: Seq[Request], config: ModelConfig, **sizes: int) -> dict[str, list[int]]:
    """What a runner without a checkpoint generates; `sizes` are fields of ModelInfo."""
    info = model_info(vocab_size=runner.vocab_size, max_num_seqs=config.max_num_seqs, **sizes)
    engine = LLMEngine(runner, info, config, StopRules(frozenset(), None))
    engine._sampler = NotingSampler([])
    return {name: output.token_ids for name, output in outputs_of(engine, requests).items()}

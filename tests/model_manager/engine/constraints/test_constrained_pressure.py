"""Constrained and free requests with few blocks, rows and tokens a step: each ends once, and as it ends alone.

Tokens are a function of the history that the runner reads back from its blocks, and of the mask of their place: a
matcher that was not rolled back, or a mask of another row, shows as another token.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.model_manager.engine.constraints import masks
from millrace.model_manager.engine.speculation import drafts as speculation
from millrace.model_manager.grammars import grammar, guide
from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.grammars.guide import Ends, Guide
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConstraintNotMet
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.constraints.letters import grammars, text
from tests.model_manager.engine.history_runner import EOS, VOCAB_SIZE, EngineUnderTest, HistoryRunner

MAX_LEN = 60
PATTERNS = [None, None, "[a-e]{3,12}", "(abcdefg|abd|x?[f-h]{8}aabc)+", "a{1,3}bcdefgh[i-k]+", "(a(b(c(d)?)?)?){2,5}o"]
ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "pattern": st.sampled_from(PATTERNS),
            "prompt": st.integers(1, 30),
            "max_tokens": st.integers(1, 28),
            "temperature": st.sampled_from([0.0, 1.0]),
            "logprobs": st.sampled_from([None, None, 1]),
            "penalty": st.sampled_from([0.0, 0.0, 1.0]),
            "at": st.integers(0, 12),
            "aborted_after": st.sampled_from([None] * 6 + [0, 4]),
        }
    ),
    min_size=4,
    max_size=10,
)


def request(name: str, arrival: dict[str, Any], brought: list[int] | None = None) -> Request:
    fields = {key: arrival[key] for key in ("max_tokens", "temperature", "logprobs")}
    fields |= {"frequency_penalty": arrival["penalty"], "seed": int(name)}
    fields |= {"constraint": {"regex": arrival["pattern"]}} if arrival["pattern"] else {}
    return Request(name, [5] * arrival["prompt"], SamplingParams.parse(fields), output_token_ids=brought or [])


def alone(letters: GrammarCompiler, asked: Request) -> Output | str:
    """Its output, or the kind of its failure."""
    under_test = EngineUnderTest(HistoryRunner(64, 8, MAX_LEN), max_num_batched_tokens=256, grammars=letters)
    under_test.engine.add(asked)
    under_test.finish()
    return under_test.outputs.get(asked.request_id) or under_test.failures[asked.request_id]


@given(
    arrivals=ARRIVALS,
    num_blocks=st.integers(8, 16),
    max_num_seqs=st.integers(1, 4),
    extra_budget=st.integers(0, 30),
    runs_ahead=st.booleans(),
    speculation=st.sampled_from(["off", "prompt_lookup"]),
    pace=st.sampled_from(["quick", "slow", "late"]),
)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_each_request_ends_once_and_as_it_ends_alone(
    letters: GrammarCompiler,
    arrivals: list[dict[str, Any]],
    num_blocks: int,
    max_num_seqs: int,
    extra_budget: int,
    runs_ahead: bool,
    speculation: Any,
    pace: str,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if pace == "slow":
            patch.setattr(Grammar, "is_slow", property(lambda _: True))
        elif pace == "late":
            patch.setattr(masks, "_PATIENCE", -1.0)
        under_test = arrived(letters, arrivals, num_blocks, max_num_seqs, extra_budget, runs_ahead, speculation)
    for place, arrival in enumerate(arrivals):
        check(letters, under_test, str(place), arrival)


def arrived(
    letters: GrammarCompiler,
    arrivals: list[dict[str, Any]],
    num_blocks: int,
    max_num_seqs: int,
    extra_budget: int,
    runs_ahead: bool,
    speculation: Any,
) -> EngineUnderTest:
    """An engine that has ended these requests."""
    under_test = EngineUnderTest(
        HistoryRunner(num_blocks, 8, MAX_LEN, runs_ahead=runs_ahead),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + extra_budget,
        speculation=speculation,
        grammars=letters,
    )
    for step in range(20):
        for place, arrival in enumerate(arrivals):
            if arrival["at"] == step:
                under_test.engine.add(request(str(place), arrival))
            if arrival["aborted_after"] is not None and arrival["at"] + arrival["aborted_after"] == step:
                under_test.engine.abort(str(place))
        under_test.step()
    under_test.finish()
    return under_test


def test_an_output_whose_constraint_takes_too_much_time_fails_alone(
    letters: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_test = EngineUnderTest(HistoryRunner(64, 8, MAX_LEN), grammars=letters)
    arrival = {"pattern": None, "prompt": 4, "max_tokens": 20, "temperature": 0.0, "logprobs": None, "penalty": 0.0}
    under_test.engine.add(request("1", arrival))
    under_test.engine.add(request("2", arrival | {"pattern": "[a-e]{3,12}"}))
    constraint = {"grammar": 'start: x\nx: x x | x x x | "a"'}
    compiled = letters.compile(Constraint.parse(constraint))
    compiled.note(1.0)
    monkeypatch.setattr(guide, "_MOST_SECONDS", -10.0)
    params = {"constraint": constraint, "ignore_eos": True, "max_tokens": 30}
    under_test.engine.add(Request("slow", [1], SamplingParams.parse(params)))
    under_test.finish()
    assert under_test.failures == {"slow": "ConstraintNotMet"}
    assert under_test.outputs.keys() == {"1", "2"}
    with pytest.raises(ConstraintNotMet, match=r"^constraint\.grammar: takes too much processor time"):
        Guide(compiled, Ends(eos=[EOS], stops=[], ignore_eos=True)).go_on()


def check(letters: GrammarCompiler, under_test: EngineUnderTest, name: str, arrival: dict[str, Any]) -> None:
    expected = alone(letters, request(name, arrival))
    found = under_test.outputs.get(name) or under_test.failures[name]
    if isinstance(found, Output) and found.finish_reason is FinishReason.ABORT:
        known = [] if isinstance(expected, str) else expected.token_ids
        assert isinstance(expected, str) or found.token_ids == known[: len(found.token_ids)]
    elif isinstance(found, str) or isinstance(expected, str):
        assert found == expected == "ConstraintNotMet"
    else:
        assert found.token_ids == expected.token_ids
        assert (found.finish_reason, found.complete) == (expected.finish_reason, expected.complete)
        assert found.forced == expected.forced
        assert arrival["pattern"] is None or re.fullmatch(arrival["pattern"], text(found.token_ids))


@pytest.mark.parametrize("pattern", ["[a-e]{3,12}", "(a(b(c(d)?)?)?){2,5}o", "abc(de|fg)h{2}[a-p]{3}"])
@pytest.mark.parametrize("quick", [1.0, -1.0])
def test_a_resumed_output_is_the_same(
    letters: GrammarCompiler, pattern: str, quick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its grammar turns out to be slow while its tokens are replayed."""
    for module in (grammar, guide):
        monkeypatch.setattr(module, "QUICK", quick)
    arrival = {"pattern": pattern, "prompt": 4, "max_tokens": 50, "temperature": 1.0, "logprobs": None, "penalty": 1.0}
    for seed in range(3):
        whole = alone(letters, request(str(seed), arrival))
        assert isinstance(whole, Output)
        for count in range(len(whole.token_ids)):
            resumed = alone(letters, request(str(seed), arrival, whole.token_ids[:count]))
            assert isinstance(resumed, Output)
            assert (resumed.token_ids, resumed.forced) == (whole.token_ids, whole.forced)


def test_a_sequence_that_is_not_finite_fails_and_no_constraint_hides_it(letters: GrammarCompiler) -> None:
    under_test = EngineUnderTest(
        HistoryRunner(64, 8, MAX_LEN, broken=lambda history: len(history) >= 6), grammars=letters
    )
    under_test.engine.add(Request("a", [1, 2], SamplingParams.parse({"constraint": {"regex": "[a-e]{20}"}})))
    under_test.finish()
    assert under_test.failures == {"a": "NonFiniteLogits"}


def test_a_constrained_output_whose_time_is_up_is_no_answer(letters: GrammarCompiler) -> None:
    under_test = EngineUnderTest(HistoryRunner(64, 8, MAX_LEN), grammars=letters)
    for name, fields in (("a", {"constraint": {"regex": "[a-e]{40}"}}), ("b", {"ignore_eos": True})):
        under_test.engine.add(Request(name, [1], SamplingParams.parse({"deadline": 5.0, "max_tokens": 50, **fields})))
        while name not in under_test.progress:
            under_test.step()
    under_test.clock.now += 6.0
    under_test.finish()
    assert under_test.failures == {"a": "DeadlineExceeded"}
    assert under_test.outputs["b"].finish_reason is FinishReason.DEADLINE


def test_drafts_that_are_forced_take_no_more_rows_of_logits_than_are_planned(
    letters: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "MOST_CERTAIN_LOGITS", 3 * VOCAB_SIZE)
    runner = HistoryRunner()
    under_test = EngineUnderTest(runner, grammars=letters)
    params = SamplingParams.parse({"constraint": {"regex": "ponmlkjihgf"}, "logprobs": 0})
    under_test.run(Request("a", [1, 2], params), Request("b", [3], params))
    assert text(under_test.outputs["a"].token_ids) == text(under_test.outputs["b"].token_ids) == "ponmlkjihgf"
    assert max(len(step.logits_rows) for step in runner.steps) == 2 + 3


def test_a_grammar_that_is_not_kept_goes_with_its_last_sequence(
    tmp_path: Path,
) -> None:
    grammars.__wrapped__(tmp_path)
    compiler = GrammarCompiler(tmp_path, VOCAB_SIZE, [EOS], most_kept_bytes=0)
    under_test = EngineUnderTest(grammars=compiler)
    constraint = Constraint(regex="[a-e]{3}")
    params = SamplingParams(constraint=constraint)
    under_test.run(Request("a", [1, 2], params), Request("b", [1, 2], params))
    assert compiler.kept(constraint) is None


def test_a_model_without_a_tokenizer_takes_no_constraints() -> None:
    under_test = EngineUnderTest()
    with pytest.raises(ValueError, match=r"constraint: takes a model whose folder has a tokenizer\.json"):
        under_test.engine.add(Request("a", [1], SamplingParams.parse({"constraint": {"json": True}})))
    assert not under_test.engine.has_work()


@pytest.mark.parametrize("how", ["abort", "deadline", "again"])
def test_an_output_that_is_being_closed_ends_once(
    letters: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    go_on, closed = threading.Event(), Guide.closed

    def held(guide: Guide, *given: int) -> Any:
        assert go_on.wait(60)
        return closed(guide, *given)

    monkeypatch.setattr(Guide, "closed", held)
    under_test = EngineUnderTest(grammars=letters)
    params = SamplingParams.parse({"constraint": {"regex": "[a-e]{5,40}p"}, "deadline": 5.0, "max_tokens": 8})
    under_test.engine.add(Request("a", [1], params))
    while not under_test.engine._scheduler.running:
        under_test.step()
    while under_test.engine._scheduler.running:
        under_test.step()
    assert "a" in under_test.engine, "it has not ended by itself"
    assert under_test.engine.has_work()
    if how == "abort":
        under_test.engine.abort("a")
    elif how == "deadline":
        under_test.clock.now += 6.0
        under_test.step()
    else:
        with pytest.raises(ValueError, match="is running already"):
            under_test.engine.add(Request("a", [1], params))
    go_on.set()
    under_test.finish()
    if how == "abort":
        assert under_test.outputs["a"].finish_reason is FinishReason.ABORT
        assert len(under_test.outputs["a"].token_ids) == 8
    else:  # whose tokens were there in time; of letters alone no text is free, so there is no ending
        assert under_test.failures == {"a": "ConstraintNotMet"}


def test_a_nested_output_is_whole_or_none(letters: GrammarCompiler) -> None:
    grammar = {"grammar": 'start: "o" (start | "b" start)* "a"'}
    for seed in range(20):
        asked = Request(
            str(seed), [3], SamplingParams.parse({"constraint": grammar, "temperature": 1.0, "max_tokens": 24})
        )
        output = alone(letters, asked)
        if isinstance(output, Output):
            assert text(output.token_ids).count("a") == text(output.token_ids).count("o")
        else:
            assert output == "ConstraintNotMet"

"""Constraints that are being compiled, and tokens that are gone through: who waits for which, who ends meanwhile."""

from __future__ import annotations

import re
import threading
from concurrent.futures import wait

import pytest

from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.grammars.guide import Guide
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.request import FinishReason, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.constraints.letters import text
from tests.model_manager.engine.history_runner import EngineUnderTest


class Held(GrammarCompiler):
    """Compiles a constraint only once it is let go; counts how often."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self.counts = compiler.counts
        self.let_go = threading.Event()
        self.compiled = 0

    def kept(self, constraint: Constraint) -> Grammar | None:
        return self._compiler.kept(constraint)

    def compile(self, constraint: Constraint) -> Grammar:
        self.compiled += 1
        assert self.let_go.wait(60)
        return self._compiler.compile(constraint)


def test_nobody_waits_for_a_compilation_but_those_whose_constraint_it_is(letters: GrammarCompiler) -> None:
    held = Held(letters)
    under_test = EngineUnderTest(grammars=held)
    constrained = {"constraint": {"regex": "[a-e]{3}"}, "deadline": 5.0}
    for name in ("a", "b", "aborted", "late"):
        fields = constrained if name == "late" else constrained | {"deadline": None}
        under_test.engine.add(Request(name, [1, 2], SamplingParams.parse(fields)))
    under_test.engine.add(Request("free", [1, 2], SamplingParams.parse({"max_tokens": 5, "ignore_eos": True})))
    while "free" not in under_test.outputs:
        under_test.step()
    assert under_test.engine.stats().waiting == 4
    under_test.engine.abort("aborted")
    under_test.clock.now += 6.0
    under_test.step()
    assert under_test.outputs["aborted"].finish_reason is FinishReason.ABORT
    assert under_test.failures == {"late": "DeadlineExceeded"}
    assert under_test.engine.has_work()
    held.let_go.set()
    under_test.finish()
    assert all(re.fullmatch("[a-e]{3}", text(under_test.outputs[name].token_ids)) for name in ("a", "b"))
    assert held.compiled == 1


def test_each_request_with_a_constraint_is_a_compilation_or_finds_one(letters: GrammarCompiler) -> None:
    under_test, before = EngineUnderTest(grammars=letters), letters.counts.now()
    for wave in range(2):  # the second finds what the first had compiled
        for index in range(40):  # more than wait for one compilation
            params = SamplingParams.parse({"constraint": {"regex": f"[ab]{{{1 + index % 2}}}c"}, "max_tokens": 5})
            under_test.engine.add(Request(f"{wave}-{index}", [1, 2], params))
        under_test.engine.add(Request(f"{wave}", [1, 2], SamplingParams.parse({"max_tokens": 2, "ignore_eos": True})))
        under_test.finish()
    refused = SamplingParams.parse({"constraint": {"regex": "a(?=b)"}})
    for name in ("refused", "again"):
        under_test.engine.add(Request(name, [1, 2], refused))
        under_test.finish()
    assert under_test.failures == {"refused": "InvalidRequest", "again": "InvalidRequest"}
    stats = under_test.engine.stats()
    assert stats.grammars_compiled - before.compiled == 2 + 1
    assert stats.grammar_hits - before.hits == 78 + 1
    assert stats.grammar_seconds > before.seconds


def test_few_constraints_are_compiled_at_a_time_and_those_of_the_far_end_of_the_line_not_at_all(
    letters: GrammarCompiler,
) -> None:
    held = Held(letters)
    under_test = EngineUnderTest(grammars=held)
    for index in range(40):
        params = SamplingParams.parse(
            {"constraint": {"regex": f"[a-e]{{{1 + index}}}"}, "max_tokens": 50, "priority": index % 2}
        )
        under_test.engine.add(Request(str(index), [1, 2], params))
    for _ in range(3):
        under_test.step()
    begun = under_test.engine._preparation._begun
    assert len(begun) == 16
    assert all(int(name) % 2 == 0 for name in begun)  # the first in line
    held.let_go.set()
    under_test.finish()
    assert len(under_test.outputs) == 40


def test_constraints_that_nobody_waits_for_any_more_leave_their_places_to_others(letters: GrammarCompiler) -> None:
    held = Held(letters)
    under_test = EngineUnderTest(grammars=held)
    for index in range(20):
        constraint = {"regex": f"a[b-e]{{{1 + index}}}"}
        under_test.engine.add(Request(str(index), [1, 2], SamplingParams.parse({"constraint": constraint})))
    under_test.step()
    for index in range(20):
        under_test.engine.abort(str(index))
    under_test.engine.add(Request("new", [1, 2], SamplingParams.parse({"constraint": {"regex": "a[b-e]{4}"}})))
    under_test.engine.add(Request("other", [1, 2], SamplingParams.parse({"constraint": {"regex": "a[b-e]{30}"}})))
    for _ in range(3):
        under_test.step()
    assert under_test.engine._preparation._begun.keys() == {"new", "other"}
    held.let_go.set()
    under_test.finish()
    assert re.fullmatch("a[b-e]{4}", text(under_test.outputs["new"].token_ids))
    assert held.compiled <= 4, "those that were begun, and those that are asked for"


def test_who_needs_no_compilation_waits_for_none(letters: GrammarCompiler) -> None:
    """However many constraints are slow, and however many sequences they have that are first in line."""
    held, kept = Held(letters), Constraint(regex="[a-e]{3}b")
    letters.compile(kept)
    under_test = EngineUnderTest(grammars=held)
    for index in range(200):
        params = SamplingParams.parse({"constraint": {"regex": f"[a-d]{{{1 + index % 20}}}"}, "max_tokens": 30})
        under_test.engine.add(Request(str(index), [1, 2], params))
    under_test.engine.add(Request("kept", [1, 2], SamplingParams(constraint=kept)))
    under_test.engine.add(Request("resumed", [1, 2], SamplingParams(constraint=kept), output_token_ids=[1]))
    while not {"kept", "resumed"} <= under_test.outputs.keys():
        under_test.step()
    assert not under_test.outputs.keys() - {"kept", "resumed"}
    held.let_go.set()
    under_test.finish()
    assert len(under_test.outputs) == 202
    assert held.compiled == 20


@pytest.mark.parametrize("error", [ValueError("llguidance's"), KeyError("ours")], ids=["request", "fault"])
def test_only_what_llguidance_does_not_take_is_the_requests_fault(letters: GrammarCompiler, error: Exception) -> None:
    class Failing(Held):
        def compile(self, constraint: Constraint) -> Grammar:
            assert constraint.regex
            raise error

    under_test = EngineUnderTest(grammars=Failing(letters))
    under_test.engine.add(Request("a", [1, 2], SamplingParams(constraint=Constraint(regex="[abc]x"))))
    if isinstance(error, ValueError):
        under_test.finish()
        assert under_test.failures == {"a": "InvalidRequest"}
    else:
        with pytest.raises(KeyError, match="ours"):
            under_test.finish()


@pytest.mark.parametrize("how", ["abort", "deadline"])
def test_a_request_that_ends_while_its_tokens_are_gone_through_has_all_of_them(
    letters: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    reached, go_on, take_again = threading.Event(), threading.Event(), Guide.take_again

    def held(guide: Guide, token_id: int) -> None:
        if guide.length == 3:
            reached.set()
            assert go_on.wait(60)
        take_again(guide, token_id)

    monkeypatch.setattr(Guide, "take_again", held)
    under_test = EngineUnderTest(grammars=letters)
    params = SamplingParams.parse({"constraint": {"regex": "[a-e]{20}"}, "deadline": 5.0, "max_tokens": 30})
    under_test.engine.add(Request("a", [1, 2], params, output_token_ids=[1, 2, 3, 4, 5, 1, 2]))
    while not reached.is_set():
        under_test.step()
    replay = under_test.engine._preparation._begun["a"]
    if how == "abort":
        under_test.engine.abort("a")
    else:
        under_test.clock.now += 6.0
        under_test.step()
    go_on.set()
    wait([replay])
    under_test.finish()
    if how == "abort":
        assert under_test.outputs["a"].finish_reason is FinishReason.ABORT
        assert under_test.outputs["a"].token_ids == [1, 2, 3, 4, 5, 1, 2]
    else:
        assert under_test.failures == {"a": "DeadlineExceeded"}


def test_a_less_urgent_one_goes_on_though_more_urgent_ones_than_are_looked_at_always_wait(
    letters: GrammarCompiler,
) -> None:
    """All have constraints, so that nobody waits in the scheduler's line before its own is compiled."""
    under_test = EngineUnderTest(grammars=letters, max_num_seqs=2)
    row = {"constraint": {"regex": "[a-e]{30}"}, "max_tokens": 40}
    under_test.engine.add(Request("row", [1, 2], SamplingParams.parse(row)))
    urgent = SamplingParams.parse({"constraint": {"regex": "[a-e]{9}"}, "max_tokens": 20, "priority": -1000})
    asked = 0
    while "row" not in under_test.outputs:
        while asked - len(under_test.outputs) < 200:
            under_test.engine.add(Request(str(asked), [1, 2], urgent))
            asked += 1
        under_test.step()
        assert asked < 4000
    assert re.fullmatch("[a-e]{30}", text(under_test.outputs["row"].token_ids))
    assert len(under_test.outputs) > 20

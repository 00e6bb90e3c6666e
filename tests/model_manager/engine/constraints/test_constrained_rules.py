"""A constraint beside the request's other parameters, and the pitfalls of structured output that engines fall into.

Non-canonical tokens of forced text: test_constrained_engine.test_tokens_that_the_constraint_forces_… · rows of masks
under batching: …test_company_changes_no_ones_tokens · rollback: …test_tokens_do_not_depend_on_how_they_are_computed ·
an all-zero mask, errors that stick, stop strings, several ends, endings in the middle: here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.model_manager.client.choices import choice_requests
from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.grammars.guide import Ends, Guide
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConstraintNotMet
from millrace.model_manager.wire.request import FinishReason, Request
from tests.model_manager.engine.constraints.constrained_engine import (
    DATE,
    LARK,
    Run,
    holds,
    random_engine,
    request,
    tokenizer,
)
from tests.model_manager.engine.constraints.letters import PIECES, grammars


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LLMEngine:
    return random_engine(tmp_path_factory.mktemp("random"), max_num_seqs=8)


def tokens_of(*texts: str) -> list[int]:
    found = [tokenizer().token_to_id(text) for text in texts]
    return [token for token in found if token is not None]


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_string_ends_an_output_only_where_that_is_whole(shared: LLMEngine, included: bool) -> None:
    pattern = "[a-e]{4,12}"
    asked = [
        request(str(n), {"regex": pattern}, seed=n, stop=["a", "bc"], include_stop_str_in_output=included)
        for n in range(12)
    ]
    run = Run(shared, *asked)
    assert not run.failures
    stopped = [name for name, output in run.outputs.items() if isinstance(output.stop_reason, str)]
    assert stopped
    for name, output in run.outputs.items():
        assert re.fullmatch(pattern, run.text(name))
        if name in stopped:
            assert run.text(name).endswith(str(output.stop_reason)) or not included
    passed = [name for name in run.outputs if re.search("a|bc", run.text(name)[:4])]
    assert passed  # what is complete sooner is text


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_token_ends_an_output_only_where_it_may_end_and_is_no_part_of_it(
    shared: LLMEngine, included: bool
) -> None:
    stops = tokens_of("a", "x")
    told = {"stop_token_ids": stops, "include_stop_str_in_output": included}
    asked = [request(str(n), {"regex": "[a-c]{3,9}"}, seed=n, **told) for n in range(12)]
    run = Run(shared, *asked)
    assert not run.failures
    for name in run.outputs:
        assert re.fullmatch("[a-c]{3,9}", run.text(name))
    stopped = {output.stop_reason for output in run.outputs.values()} - {None}
    assert stopped <= set(stops)
    assert stopped


def test_stop_tokens_that_the_model_does_not_have_never_come(shared: LLMEngine) -> None:
    run = Run(shared, request("a", {"regex": "[a-e]{3,9}"}, stop_token_ids=[50_000]))
    assert re.fullmatch("[a-e]{3,9}", run.text("a"))


FREE = {"json_schema": {"type": "string", "minLength": 2, "maxLength": 60}}


def test_an_output_says_where_it_was_closed(shared: LLMEngine) -> None:
    asked = [request(f"{most}-{n}", FREE, seed=n, max_tokens=most) for n in range(6) for most in (6, 70)]
    run = Run(shared, *asked)
    assert all(2 <= len(json.loads(run.text(name))) <= 60 for name in run.outputs)
    for name, output in run.outputs.items():
        is_closed = output.num_own_tokens is not None
        assert output.finish_reason is (FinishReason.LENGTH if is_closed else FinishReason.STOP)
        ample = run.outputs.get(f"70-{name[-1]}")
        if ample is not None:
            assert output.token_ids[: output.num_own_tokens][:5] == ample.token_ids[: output.num_own_tokens][:5]
    assert any(output.num_own_tokens is not None for output in run.outputs.values())


def test_an_output_is_closed_as_it_was_where_another_engine_goes_on(shared: LLMEngine) -> None:
    asked = request("a", FREE, seed=2, max_tokens=7)
    whole = Run(shared, request("a", FREE, seed=2, max_tokens=70)).outputs["a"].token_ids
    alone = Run(shared, asked).outputs["a"]
    assert alone.num_own_tokens is not None
    for count in (0, 3, 7):
        given = Request("a", asked.prompt_token_ids, asked.params, output_token_ids=whole[:count])
        assert Run(shared, given).outputs["a"].token_ids == alone.token_ids


@pytest.mark.parametrize("count", [0, 3, 7])
def test_an_output_that_may_be_cut_is_the_models_own_beginning(shared: LLMEngine, count: int) -> None:
    ample = Run(shared, request("a", FREE, seed=2, max_tokens=70)).outputs["a"].token_ids
    asked = replace(request("a", FREE, seed=2, max_tokens=7), may_be_cut=True, output_token_ids=ample[:count])
    output = Run(shared, asked).outputs["a"]
    assert output.token_ids == ample[:7]
    assert (output.finish_reason, output.is_cut, output.num_own_tokens) == (FinishReason.LENGTH, True, None)


def test_an_output_is_not_closed_with_tokens_of_which_the_request_says_more(shared: LLMEngine) -> None:
    """They are not the model's, so they have no log-probabilities, and might hold what is forbidden."""
    told: dict[str, dict[str, Any]] = {
        "plain": {},
        "logprobs": {"logprobs": 0},
        "bad words": {"bad_words": ['"']},
        "stop": {"stop": ['b"']},
        "bias": {"logit_bias": {5: -1.0}},
    }
    few: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6}
    run = Run(shared, *(request(name, FREE, **few, **told[name]) for name in told))
    assert run.outputs.keys() == {"plain"}
    assert run.outputs["plain"].num_own_tokens is not None
    assert {each.kind for each in run.failures.values()} == {"ConstraintNotMet"}


def test_an_answer_that_fits_is_the_models_however_few_its_tokens(shared: LLMEngine) -> None:
    """Each answer is one token: a budget of one token prefers none."""
    words = ["a", "b", "c", "d"]
    few = [request(f"1 {n}", {"choice": words}, seed=n, max_tokens=1) for n in range(12)]
    many = [request(f"9 {n}", {"choice": words}, seed=n, max_tokens=9) for n in range(12)]
    run = Run(shared, *few, *many)
    assert [run.text(f"1 {n}") for n in range(12)] == [run.text(f"9 {n}") for n in range(12)]
    assert len({run.text(name) for name in run.outputs}) > 1


def test_what_the_grammar_has_no_more_of_ends_the_output_whatever_min_tokens_says(shared: LLMEngine) -> None:
    run = Run(shared, request("a", {"regex": DATE}, min_tokens=30, max_tokens=40))
    assert re.fullmatch(DATE, run.text("a"))
    assert run.outputs["a"].finish_reason is FinishReason.STOP


def test_min_tokens_keeps_an_output_going_where_the_grammar_does(shared: LLMEngine) -> None:
    asked = [request(str(n), {"regex": "[a-c]*"}, seed=n, min_tokens=12, max_tokens=20) for n in range(4)]
    run = Run(shared, *asked)
    assert not run.failures
    assert all(len(output.token_ids) >= 12 for output in run.outputs.values())
    assert all(re.fullmatch("[a-c]*", run.text(name)) for name in run.outputs)


def test_an_ignored_end_of_sequence_never_comes(shared: LLMEngine) -> None:
    run = Run(shared, request("a", {"regex": "[a-c]+"}, ignore_eos=True, max_tokens=20))
    assert len(run.outputs["a"].token_ids) == 20
    assert run.outputs["a"].finish_reason is FinishReason.LENGTH
    assert re.fullmatch("[a-c]+", run.text("a"))


def test_rules_that_leave_nothing_end_an_output_that_is_whole_and_fail_any_other(shared: LLMEngine) -> None:
    letters = tokens_of("a", "b")
    asked = [
        request("whole", {"regex": "[0-9]*"}, allowed_token_ids=letters),
        request("begun", {"regex": "a[0-9]*"}, allowed_token_ids=letters),
        request("not", {"regex": "a[0-9]"}, allowed_token_ids=letters),
        request("free", None, allowed_token_ids=letters, max_tokens=4),
    ]
    run = Run(shared, *asked)
    assert (run.text("whole"), run.outputs["whole"].finish_reason) == ("", FinishReason.STOP)
    assert (run.text("begun"), run.outputs["begun"].finish_reason) == ("a", FinishReason.STOP)
    assert run.failures["not"].kind == "ConstraintNotMet"
    assert "other rules" in run.failures["not"].message
    assert len(run.outputs["free"].token_ids) == 4


def test_bad_words_and_bias_choose_among_what_is_allowed(shared: LLMEngine) -> None:
    forbidden = tokens_of("q")[0]
    asked = [
        request("no", {"choice": ["yes", "no"]}, bad_words=["yes", "ye", "y"]),
        request("biased", {"regex": "[a-c]{5}"}, logit_bias={forbidden: 100}),
        request("one", {"regex": "[a-c]{5}"}, logit_bias={tokens_of("b")[0]: 100}),
    ]
    run = Run(shared, *asked)
    assert run.text("no") == "no"
    assert re.fullmatch("[a-c]{5}", run.text("biased"))
    assert run.text("one") == "bbbbb"


def test_several_answers_are_each_of_the_constraint(shared: LLMEngine) -> None:
    answers = choice_requests(request("a", {"grammar": LARK}, n=5, seed=1))
    run = Run(shared, *answers)
    texts = {run.text(name) for name in run.outputs}
    assert len(texts) > 1
    assert all(holds({"grammar": LARK}, text) for text in texts)


def test_a_prompts_log_probabilities_come_with_an_output_that_is_forced(shared: LLMEngine) -> None:
    output = Run(shared, request("a", {"choice": ["certainly"]}, prompt_logprobs=1)).outputs["a"]
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs.logprobs) == output.prompt_tokens - 1
    assert output.forced == list(range(len(output.token_ids)))


def test_what_goes_wrong_in_a_matcher_stays_wrong(tmp_path: Path) -> None:
    guide = guide_of("[a-c]{5}", tmp_path)
    wrong = PIECES.index("d")
    for _ in range(2):
        with pytest.raises(ConstraintNotMet, match="after 0 tokens"):
            guide.take(wrong)


def guide_of(pattern: str, folder: Path) -> Guide:
    grammar = grammars(folder).compile(Constraint(regex=pattern))
    return Guide(grammar, Ends(eos=[0], stops=[], ignore_eos=False))

"""Constrained requests through the real engine: every output meets its constraint, alone, in company, at its limits."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.wire.request import FinishReason, Request
from tests.model_manager.engine.constraints.constrained_engine import (
    CONSTRAINTS,
    DATE,
    FOLDER,
    SCHEMA,
    Run,
    engine,
    holds,
    request,
    tokenizer,
)


@pytest.fixture(scope="module")
def shared() -> LLMEngine:
    return engine()


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_every_output_is_of_its_constraint(shared: LLMEngine, kind: str) -> None:
    asked = [request(f"{kind} {n}", CONSTRAINTS[kind], seed=n, temperature=0.5 * (n % 4)) for n in range(10)]
    run = Run(shared, *asked)
    assert not run.failures
    assert [run.text(name) for name in run.outputs if not holds(CONSTRAINTS[kind], run.text(name))] == []


def test_company_changes_no_ones_tokens(shared: LLMEngine) -> None:
    kinds: dict[str, dict[str, Any] | None] = {**CONSTRAINTS, "free": None, "penalised": None}
    asked = [
        request(f"{kind} {n}", kinds[kind], seed=n, frequency_penalty=0.5 * (kind == "penalised"))
        for kind in kinds
        for n in range(1)
    ]
    together = Run(shared, *asked).tokens()
    for each in asked:
        assert Run(shared, each).tokens()[each.request_id] == together[each.request_id]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 16},
        {"speculation": "prompt_lookup", "num_speculative_tokens": 4},
        {"speculation": "draft_model", "draft_model": str(FOLDER), "num_speculative_tokens": 3},
        {"prefix_caching": False, "block_size": 8, "max_num_seqs": 3},
    ],
    ids=lambda settings: next(iter(settings)) + str(settings.get("speculation", "")),
)
def test_tokens_do_not_depend_on_how_they_are_computed(settings: dict[str, Any]) -> None:
    asked = [
        request(f"{kind} {temperature}", constraint, temperature=temperature, frequency_penalty=temperature / 8)
        for kind, constraint in CONSTRAINTS.items()
        for temperature in (0.0, 1.0)
    ]
    asked += [request(f"{kind} told", constraint, logprobs=0) for kind, constraint in CONSTRAINTS.items()]
    run, other = (Run(engine(dtype="float32", **each), *asked) for each in ({}, settings))
    assert run.tokens() == other.tokens()
    assert {name: each.forced for name, each in run.outputs.items()} == {
        name: each.forced for name, each in other.outputs.items()
    }


def test_tokens_that_the_constraint_forces_cost_no_steps_of_their_own(shared: LLMEngine) -> None:
    forced = "forced from the first to the last token of it"
    run = Run(shared, request("a", {"choice": [forced]}))
    output = run.outputs["a"]
    assert run.text("a") == forced
    assert output.forced == list(range(len(output.token_ids)))
    assert output.complete
    assert output.token_ids == tokenizer().encode(forced).ids  # as the model's own tokenizer writes it
    assert run.steps <= 3
    told = Run(shared, request("told", {"choice": [forced]}, logprobs=0))
    assert told.outputs["told"].token_ids == output.token_ids
    assert told.outputs["told"].forced == output.forced
    assert told.steps <= 4
    free = Run(shared, request("b", {"regex": f"[xyz] {forced}"}))
    assert free.outputs["b"].forced[0] >= 1
    assert len(free.outputs["b"].forced) > 5


def test_log_probabilities_are_the_models_own(shared: LLMEngine) -> None:
    constrained = Run(shared, request("a", {"regex": DATE}, temperature=0.0, logprobs=3)).outputs["a"]
    assert constrained.logprobs is not None
    assert len(constrained.logprobs.logprobs) == len(constrained.token_ids)
    free = Run(shared, request("b", None, temperature=0.0, logprobs=3, max_tokens=1)).outputs["b"]
    assert free.logprobs is not None
    assert constrained.logprobs.top_token_ids[0] == free.logprobs.top_token_ids[0]
    assert constrained.logprobs.top_logprobs[0] == pytest.approx(free.logprobs.top_logprobs[0])


def test_a_request_that_is_resumed_goes_on_where_it_was(shared: LLMEngine) -> None:
    for kind, constraint in CONSTRAINTS.items():
        asked = request(kind, constraint, seed=3, logprobs=0)
        whole = Run(shared, asked).outputs[kind]
        for count in range(0, len(whole.token_ids), 3):
            given = Request(
                kind,
                asked.prompt_token_ids,
                asked.params,
                output_token_ids=whole.token_ids[:count],
                output_logprobs=whole.logprobs.part(0, count) if whole.logprobs else None,
            )
            resumed = Run(shared, given).outputs[kind]
            assert (resumed.token_ids, resumed.forced) == (whole.token_ids, whole.forced)
            assert resumed.logprobs is not None
            assert len(resumed.logprobs.logprobs) == len(resumed.token_ids)


def test_what_is_given_and_not_of_the_constraint_fails_alone(shared: LLMEngine) -> None:
    asked = request("a", {"regex": DATE})
    wrong = Request("a", asked.prompt_token_ids, asked.params, output_token_ids=tokenizer().encode("20x").ids)
    run = Run(shared, wrong, request("b", {"regex": DATE}))
    assert run.failures["a"].kind == "ConstraintNotMet"
    assert holds({"regex": DATE}, run.text("b"))


@pytest.mark.parametrize("max_tokens", range(14, 40, 3))
def test_an_output_never_ends_in_the_middle(shared: LLMEngine, max_tokens: int) -> None:
    asked = [request(str(n), {"json_schema": SCHEMA}, seed=n, max_tokens=max_tokens) for n in range(6)]
    run = Run(shared, *asked)
    assert {each.kind for each in run.failures.values()} <= {"ConstraintNotMet"}
    assert run.outputs or max_tokens < 30
    for name in run.outputs:
        assert holds({"json_schema": SCHEMA}, run.text(name))
        assert len(run.outputs[name].token_ids) <= max_tokens


def test_brackets_are_closed_in_time(shared: LLMEngine) -> None:
    nested = {"grammar": 'start: "[" (start ("," start)*)? "]"'}
    asked = [request(str(n), nested, seed=n, max_tokens=30) for n in range(8)]
    run = Run(shared, *asked)
    assert {each.kind for each in run.failures.values()} <= {"ConstraintNotMet"}
    assert run.outputs
    for name in run.outputs:
        assert run.text(name).count("[") == run.text(name).count("]")


def test_what_cannot_be_closed_fails_alone(shared: LLMEngine) -> None:
    asked = [request("short", {"json_schema": SCHEMA}, max_tokens=3), request("long", {"json_schema": SCHEMA})]
    run = Run(shared, *asked)
    assert run.failures["short"].kind == "ConstraintNotMet"
    assert "3 tokens" in run.failures["short"].message
    assert run.outputs.keys() == {"long"}


def test_an_impossible_constraint_fails_alone(shared: LLMEngine) -> None:
    run = Run(shared, request("bad", {"regex": "(("}), request("good", {"regex": DATE}), request("free", None))
    assert run.failures["bad"].kind == "InvalidRequest"
    assert run.outputs.keys() == {"good", "free"}


def test_a_grammar_that_is_at_its_end_ends_the_output_without_a_token(shared: LLMEngine) -> None:
    output = Run(shared, request("a", {"regex": DATE}, max_tokens=60)).outputs["a"]
    assert output.finish_reason is FinishReason.STOP
    assert output.complete
    assert output.token_ids[-1] not in shared.info.eos_token_ids

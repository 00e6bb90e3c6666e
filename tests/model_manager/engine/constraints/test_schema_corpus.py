"""Under public schemas every valid instance may be written, no invalid one, and whatever is generated validates."""

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.grammars.llguidance_schemas import OPTIONS
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import Request
from tests.model_manager.engine.constraints.constrained_engine import Run, random_engine, request
from tests.model_manager.engine.constraints.instances_written import takes
from tests.model_manager.engine.constraints.random_outputs import random_output
from tests.model_manager.engine.constraints.schema_corpus import CORPUS, Case, corpus, exactly, validator
from tests.model_manager.engine.constraints.unsupported_schemas import (
    FOLDER,
    PAGE,
    UNSUPPORTED,
    Unsupported,
    refusal,
    with_table,
)

if not CORPUS.is_file():
    pytest.skip("shared/data/jsonschemas.jsonl.gz is not beside the checkout", allow_module_level=True)

TOKENS = 96
LONGEST = 512
"""Tokens of an output: the shortest under one of the schemas has 416."""
FEW = corpus()[::90]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(FOLDER, 2000, [1])


def compiled(compiler: GrammarCompiler, cases: list[Case]) -> list[tuple[Case, Grammar]]:
    """The cases that are not refused, with their grammars."""
    grammars = []
    for case in cases:
        try:
            grammars.append((case, compiler.compile(Constraint(json_schema=case.schema))))
        except InvalidRequest:
            continue
    return grammars


def wrongly_judged(compiler: GrammarCompiler, cases: list[Case]) -> list[str]:
    """Instances whose grammar says otherwise than the corpus."""
    wrong = []
    for case, grammar in compiled(compiler, cases):
        wrong += [f"{case.name} refuses {json.dumps(value)}" for value in case.valid if not takes(grammar, value)]
        wrong += [f"{case.name} takes {json.dumps(value)}" for value in case.invalid if takes(grammar, value)]
    return wrong


def invalid_outputs(compiler: GrammarCompiler, cases: list[Case], seeds: range) -> tuple[list[str], int]:
    """Generated texts that their schema does not validate; and how many were cut and could not be closed."""
    wrong, unclosed = [], 0
    for case, grammar in compiled(compiler, cases):
        judge = validator(case.schema)
        for text in (random_output(grammar, seed, TOKENS) for seed in seeds):
            if text is None:
                unclosed += 1
                continue
            wrong += [f"{case.name}: {error.message[:200]}: {text[:500]}" for error in judge.iter_errors(exactly(text))]
    return wrong, unclosed


def test_instances_of_a_few_schemas_are_judged_right(compiler: GrammarCompiler) -> None:
    assert wrongly_judged(compiler, FEW) == []


def test_outputs_under_schemas_validate(compiler: GrammarCompiler) -> None:
    """An eighth of them; the engine's test has others."""
    wrong, unclosed = invalid_outputs(compiler, corpus()[::8], range(1))
    assert wrong == []
    assert unclosed <= 4, "of 51: large schemas, and patterns into which no way is found"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_an_engine_generates_under_schemas_validates(compiler: GrammarCompiler, tmp_path: Path) -> None:
    """An eighteenth of them, random weights, temperature 1, 32 sequences at a time; each batch has several schemas."""
    engine = random_engine(tmp_path, max_num_seqs=32)
    cases = compiled(compiler, corpus()[5::18])
    assert len(cases) == 21
    run = Run(engine, *(_request(case) for case, _ in cases))
    assert {error.kind for error in run.failures.values()} <= {"ConstraintNotMet"}
    assert len(run.outputs) >= 10, "at 512 tokens: others would have to change a value that has begun"
    wrong = []
    for case in (case for case, _ in cases if case.name in run.outputs):
        errors = validator(case.schema).iter_errors(exactly(run.text(case.name)))
        wrong += [f"{case.name}: {error.message[:200]}: {run.text(case.name)[:500]}" for error in errors]
    assert wrong == []


def _request(case: Case) -> Request:
    return request(case.name, {"json_schema": case.schema}, seed=0, max_tokens=LONGEST)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_instances_of_all_schemas_are_judged_right(compiler: GrammarCompiler) -> None:
    assert len(corpus()) == 461
    assert wrongly_judged(compiler, corpus()) == []


@pytest.mark.parametrize("entry", UNSUPPORTED, ids=lambda entry: f"{entry.keywords}: {entry.when}"[:60])
def test_what_the_table_says_is_refused_is_refused_by_name(compiler: GrammarCompiler, entry: Unsupported) -> None:
    assert entry.said in (refusal(compiler, entry.schema) or "")


def test_nothing_is_refused_that_the_table_lacks(compiler: GrammarCompiler) -> None:
    refusals: list[Any] = [refusal(compiler, case.schema) for case in corpus()]
    unsaid = [said for said in refusals if said and not any(entry.said in said for entry in UNSUPPORTED)]
    assert unsaid == []
    assert sum(said is not None for said in refusals) == 55


def test_what_llguidance_takes_is_refused_only_where_it_would_let_wrong_values_through(
    compiler: GrammarCompiler,
) -> None:
    """It counts a name that comes twice as two of `minProperties`."""
    ours = [case.name for case in corpus() if refusal(compiler, case.schema) and not _is_refused(case.schema)]
    assert ours == ["Github_hard---o74560"]


def _is_refused(schema: Any) -> bool:
    """Whether llguidance itself, with the same options, refuses the schema."""
    source = LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": OPTIONS}))
    matcher = LLMatcher(LLTokenizer("byte"), source, log_level=0)
    return matcher.is_error() or not any(matcher.compute_bitmask())


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)

"""Under public schemas every valid instance may be written, no invalid one, and whatever is generated validates."""

import json
from typing import Any

import pytest

from model_manager.engine.constraints.compiling import GrammarCompiler
from model_manager.engine.constraints.grammar import Grammar
from model_manager.wire.constraint import Constraint
from model_manager.wire.errors import InvalidRequest
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

SEEDS = range(5)
TOKENS = 96
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


def invalid_outputs(compiler: GrammarCompiler, cases: list[Case], seeds: range) -> list[str]:
    """Generated texts that their schema does not validate."""
    wrong = []
    for case, grammar in compiled(compiler, cases):
        judge = validator(case.schema)
        for text in (random_output(grammar, seed, TOKENS) for seed in seeds):
            wrong += [f"{case.name}: {error.message[:200]}: {text[:500]}" for error in judge.iter_errors(exactly(text))]
    return wrong


def test_instances_of_a_few_schemas_are_judged_right(compiler: GrammarCompiler) -> None:
    assert wrongly_judged(compiler, FEW) == []


def test_outputs_under_all_schemas_validate(compiler: GrammarCompiler) -> None:
    assert invalid_outputs(compiler, corpus(), SEEDS) == []


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
    assert sum(said is not None for said in refusals) == 58


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)

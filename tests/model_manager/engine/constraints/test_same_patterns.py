"""A pattern means the same as a regular expression, in a schema and in a grammar: all that is generated matches it."""

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.wire.constraint import Constraint
from tests.model_manager.engine.constraints.unsupported_schemas import FOLDER

PATTERNS = {
    "date": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    "time": r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,3})?)?",
    "amount": r"-?(0|[1-9]\d{0,2}(,\d{3}){0,3})\.\d\d (EUR|USD|GBP)",
    "order": r"[A-Z]{2,4}-\d{3,8}(-[a-z0-9_]+)?",
    "mail": r"\w+([.+-]\w+)*@[a-z0-9]+(\.[a-z]{2,6}){1,2}",
}
FORMS = ("regex", "json_schema", "grammar")
MOST_TOKENS = 1000


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(FOLDER, 2000, [1])


def constraint(form: str, pattern: str) -> Constraint:
    forms: dict[str, Any] = {
        "regex": pattern,
        "json_schema": {"type": "string", "pattern": f"^({pattern})$"},
        "grammar": f"start: PATTERN\nPATTERN: /{pattern}/",
    }
    return Constraint(**{form: forms[form]})


def marks(compiler: GrammarCompiler) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """A flag per token: True if it begins with neither a letter nor a digit."""
    pieces = (compiler.tokenizer.decode_bytes([token]) for token in range(compiler.tokenizer.vocab_size))
    return np.array([not piece[:1].isalnum() for piece in pieces])


def sample(grammar: Grammar, is_mark: np.ndarray[Any, np.dtype[np.bool_]], source: random.Random) -> str:
    """A random text that ends soon after it may: words would go on for long if all tokens were as likely."""
    matcher, tokens = grammar.matcher(), list[int]()
    while not (matcher.is_accepting() and source.random() < 0.5) and not matcher.is_stopped():
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: len(is_mark)])
        allowed = allowed[~np.isin(allowed, grammar.tokenizer.eos_tokens)]
        ends = allowed[is_mark[allowed]]
        among = ends if len(ends) and (source.random() < 0.4 or not len(allowed)) else allowed
        if not len(among):
            break
        tokens.append(int(among[source.randrange(len(among))]))
        assert matcher.consume_token(tokens[-1]), matcher.get_error()
        assert len(tokens) < MOST_TOKENS
    assert matcher.is_accepting()
    return grammar.tokenizer.decode_bytes(tokens).decode()


def not_matching(compiler: GrammarCompiler, form: str, pattern: str, samples: int) -> list[str]:
    """The texts among so many random outputs that the pattern does not match from beginning to end."""
    grammar = compiler.compile(constraint(form, pattern))
    is_mark, source = marks(compiler), random.Random(samples)
    outputs = (sample(grammar, is_mark, source) for _ in range(samples))
    texts = [json.loads(text) if form == "json_schema" else text for text in outputs]
    assert len(set(texts)) > samples // 20, "samples that differ"
    return [text for text in texts if not re.fullmatch(pattern, text, re.ASCII)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PATTERNS)
def test_samples_match(compiler: GrammarCompiler, form: str, name: str) -> None:
    assert not_matching(compiler, form, PATTERNS[name], 40) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PATTERNS)
def test_many_samples_match(compiler: GrammarCompiler, form: str, name: str) -> None:
    """All forms become the same expression, so one has most of the samples."""
    assert not_matching(compiler, form, PATTERNS[name], 3_000 if form == "regex" else 500) == []

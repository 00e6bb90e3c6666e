"""Constraints drawn at random, each with another library's judgement of whether a text meets it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis

from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from tests.model_manager.engine.constraints.random_schemas import schemas
from tests.model_manager.engine.constraints.schema_corpus import CORPUS, corpus, exactly, validator

_CLASSES = ("[a-z]", "[A-Z]", "[0-9]", r"\d", "[^,;]", r"\w", "[aeiou ]")
_WORDS = ("yes", "no", "Paris", "order", "été", "日本", "a", "ab", "abc", "12", " ", "-", "e-mail", "\U0001f600")
_COUNTS = ("", "", "?", "+", "*", "{2}", "{1,3}", "{4}")
_DEEPEST = 3


@dataclass(frozen=True)
class Drawn:
    """A constraint, and why a text is not of it; None where it is."""

    kind: str
    constraint: Constraint
    wrong: Callable[[str], str | None]


def drawn(chance: random.Random, seed: int) -> Drawn:
    """One of any kind; `seed` says from which random schemas."""
    while True:
        try:
            return chance.choice(_KINDS)(chance, seed)
        except InvalidRequest:  # of the corpus: larger or odder than a constraint may be
            continue


def _schema(chance: random.Random, seed: int) -> Drawn:
    return _of_schema("schema", chance.choice(_schemas(seed)))


def _corpus(chance: random.Random, seed: int) -> Drawn:
    if not CORPUS.is_file():
        return _schema(chance, seed)
    return _of_schema("corpus", chance.choice(corpus()).schema)


def _of_schema(kind: str, schema: Any) -> Drawn:
    def wrong(text: str) -> str | None:
        try:
            value = exactly(text)
        except ValueError as error:
            return f"no JSON: {error}"
        return next((error.message for error in validator(schema).iter_errors(value)), None)

    return Drawn(kind, Constraint(json_schema=schema), wrong)


@cache
def _schemas(seed: int) -> list[dict[str, Any]]:
    """Schemas drawn from hypothesis' strategy; a seed gives the same ones."""
    found: list[dict[str, Any]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(schemas)
    def collect(schema: dict[str, Any]) -> None:
        found.append(schema)

    collect()
    return found


def _json(_chance: random.Random, _seed: int) -> Drawn:
    def wrong(text: str) -> str | None:
        try:
            json.loads(text)
        except ValueError as error:
            return f"no JSON: {error}"
        return None

    return Drawn("json", Constraint(json=True), wrong)


def _regex(chance: random.Random, _seed: int) -> Drawn:
    pattern = _pattern(chance, _DEEPEST)
    return Drawn("regex", Constraint(regex=pattern), lambda text: _unmatched(pattern, text))


def _pattern(chance: random.Random, depth: int) -> str:
    """A sequence of words, classes, and groups of alternatives, some of them repeated."""
    return "".join(_part(chance, depth) for _ in range(chance.randint(1, 4)))


def _part(chance: random.Random, depth: int) -> str:
    drawn_kind = chance.random()
    if depth and drawn_kind < 0.3:
        ways = "|".join(_pattern(chance, depth - 1) for _ in range(chance.randint(1, 3)))
        return f"({ways}){chance.choice(_COUNTS)}"
    if drawn_kind < 0.65:
        return chance.choice(_CLASSES) + chance.choice(_COUNTS)
    return re.escape(chance.choice(_WORDS))


def _unmatched(pattern: str, text: str) -> str | None:
    return None if re.fullmatch(pattern, text, re.ASCII) else f"does not match {pattern!r}"


def _choice(chance: random.Random, _seed: int) -> Drawn:
    texts = {"".join(chance.choices(_WORDS, k=chance.randint(1, 4))) for _ in range(chance.randint(1, 8))}
    return Drawn("choice", Constraint(choice=tuple(sorted(texts))), lambda text: None if text in texts else "no choice")


def _lark(chance: random.Random, _seed: int) -> Drawn:
    """A list between brackets, with lists within it, of what a regular expression says."""
    item = chance.choice(["[a-z]{1,6}", "[0-9]{1,4}", "[A-Z][a-z]{0,5}", "yes|no"])
    opening, closing = chance.choice([("(", ")"), ("<", ">"), ("begin ", " end")])
    least, most = chance.choice([(0, 1), (1, 3), (2, 4)])
    levels = chance.randint(0, 2)
    rules = [f"start: list_{levels}", f"ITEM: /{item}/"]
    matched = item
    for level in range(levels + 1):
        inner = "ITEM" if level == 0 else f"(ITEM | list_{level - 1})"
        rules.append(f'list_{level}: "{opening}" {inner} (", " {inner}){{{least},{most}}} "{closing}"')
        either = f"(?:{item})" if level == 0 else f"(?:{item}|{matched})"
        matched = f"{re.escape(opening)}{either}(?:, {either}){{{least},{most}}}{re.escape(closing)}"
    return Drawn("lark", Constraint(grammar="\n".join(rules)), lambda text: _unmatched(matched, text))


_KINDS: tuple[Callable[[random.Random, int], Drawn], ...] = (_schema, _schema, _corpus, _regex, _choice, _lark, _json)

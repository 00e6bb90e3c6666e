"""Rows of whole jobs, which ask of an engine or a server what it takes, and what each row must end in.

Rows differ in kind, by their numbers: greedy ones, sampled ones with and without a seed of their own, stop strings,
log-probabilities, constraints. Dead letters are a prompt too long, a constraint that no engine holds an output to, and
a row for each parameter and each kind of constraint that the engine or server lacks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from millrace.model_manager.store import resolve
from millrace.model_manager.wire.backends import ALL_PARAMETERS, BACKENDS
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.dialect_parameters import ALWAYS, dialect_parameters
from millrace.model_manager.wire.server_options import connection_of
from tests.json_lines import rows_of
from tests.model_manager.backends.every_parameter import CHANGED
from tests.model_manager.backends.generated import Generated, generated
from tests.model_manager.backends.real_servers import counted
from tests.model_manager.backends.scenarios import SCHEMA

ROWS = 300
DIFFER = 1
"""Most answers of a job that rounding may make others than `model.generate`'s, or than the same job's before."""
TOO_LONG, REFUSED = 41, 83
"""Numbers of rows that are dead letters: of the one that is too long, and of the first that asks what is not taken."""
_KINDS = ("greedy", "sampled", "stopped", "seeded", "logprobs", "constrained")
_CONSTRAINTS: dict[str, Any] = {
    "regex": "(yes|no){2,4}",
    "json_schema": SCHEMA,
    "choice": ["Paris", "Lima"],
    "grammar": 'start: ("yes" | "no") "!"',
}
"""By kind: constraints that some tens of tokens meet."""
_TOO_LONG = {
    "tokens": r"^the prompt has 15,\d+ tokens, millrace-tiny has 1024 positions",
    "text": r"^prompt of 15\d+ tokens: prompt and output together take at most 1024",
}
"""How a prompt is refused, by what an engine takes: token ids, or text whose length it alone knows."""


@dataclass(frozen=True)
class Refused:
    """A row that must be a dead letter."""

    fields: dict[str, Any]
    error: str
    reason: str
    """A pattern of it."""


@dataclass(frozen=True)
class Takes:
    """What rows may ask of an engine or a server."""

    parameters: frozenset[str] = ALL_PARAMETERS
    constraints: tuple[str, ...] = ()
    """Kinds, of those that are tried."""
    has_model: bool = True
    """It generates tokens; else its answers are the prompt's own words."""
    chats: bool = True
    """It puts a prompt into the model's chat template."""
    refused: Mapping[int, Refused] = field(default_factory=dict)
    """Rows that must be dead letters, by their numbers."""


def taken_by(
    backend: str,
    options: Mapping[str, Any],
    *,
    inputs: frozenset[str] = frozenset(),
    has_model: bool = True,
    limit: str | None = None,
) -> Takes:
    """By what the code lists of a back end, and of its servers' dialect.

    `inputs`: parameters that a server's model itself names; `limit`: how a server refuses a prompt that is too long,
    empty if it takes it.
    """
    row, connection = BACKENDS[backend], connection_of(backend, options)
    dialect = dialect_parameters(connection) if connection else None
    parameters, held = row.parameters, row.constraints
    if connection:
        own, held = (dialect.own, frozenset(dialect.constraints)) if dialect else (inputs, frozenset())
        parameters &= ALWAYS | own
    refused = dict(enumerate(_refusals(parameters, held), REFUSED))
    if limit != "":
        error = "PromptTooLong" if limit is None else "InvalidRequest"
        refused[TOO_LONG] = Refused({"prompt": "word " * 5000}, error, limit or _TOO_LONG[row.takes])
    chats = connection is None or connection.dialect == "openai"
    return Takes(parameters, tuple(kind for kind in _CONSTRAINTS if kind in held), has_model, chats, refused)


def _refusals(parameters: frozenset[str], constraints: frozenset[str]) -> Iterator[Refused]:
    """A row for each parameter and each kind of constraint that is not taken, and one with what nobody takes."""
    for name in sorted(CHANGED.keys() - parameters - {"constraint"}):
        yield Refused({name: CHANGED[name]}, "InvalidRequest", f"^{name}=.*: the .* does not take it")
    for kind, value in (_CONSTRAINTS | {"json": True}).items():
        if kind not in constraints:
            said = rf"^constraint(='{kind}': the back end \w+ takes |: the dialect .* takes .*, got {kind}$)"
            yield Refused({"constraint": {kind: value}}, "InvalidRequest", said)
    if "regex" in constraints:
        yield Refused({"constraint": {"regex": "(?=a)b"}}, "InvalidRequest", "look-?ahead")
    if "adapter" in parameters:
        yield Refused({"adapter": "tone"}, "InvalidRequest", "^adapter=.*needs max_loras of 1 or more")


def row(number: int, takes: Takes) -> dict[str, Any]:
    """Each is as long as its number says, and a kind that is not taken is a long greedy one."""
    fields: dict[str, Any] = {"id": f"p{number}", "prompt": f"What is {number} plus {number % 7}?"}
    if refused := takes.refused.get(number):
        return fields | {"max_tokens": 6} | refused.fields
    if not takes.has_model:
        fields |= {"prompt": f"slow {fields['prompt']}", "max_tokens": 1 + number % 6}
        own: dict[int, dict[str, Any]] = {0: {"stop": ["plus"]}, 1: {"seed": number}}
        return fields | own.get(number % 4, {})
    long = {"max_tokens": 12 + number % 35, "ignore_eos": True}
    match kind_of(number):
        case "greedy":
            return fields | {"max_tokens": 24}
        case "sampled":
            return fields | long | {"temperature": 0.8, "top_p": 0.9}
        case "stopped":
            return fields | long | {"stop": ["7"]}
        case "seeded" if "seed" in takes.parameters:
            return fields | long | {"temperature": 1.2, "seed": number}
        case "logprobs" if "logprobs" in takes.parameters:
            return row(_greedy_one_of(number), Takes()) | {"id": fields["id"], "max_tokens": 8, "logprobs": 2}
        case "constrained" if takes.constraints:
            kind = takes.constraints[number // len(_KINDS) % len(takes.constraints)]
            return fields | {"max_tokens": 80, "constraint": {kind: _CONSTRAINTS[kind]}}
    return fields | long


def kind_of(number: int) -> str:
    """What a row asks for, where that is taken."""
    return _KINDS[number % len(_KINDS)]


def _greedy_one_of(number: int) -> int:
    """The greedy row with the prompt of one that asks for log-probabilities."""
    return number - _KINDS.index("logprobs")


def write_rows(path: Path, rows: int, takes: Takes) -> None:
    """A job's file."""
    path.write_text("".join(json.dumps(row(number, takes)) + "\n" for number in range(rows)))


def expect_answers(folder: Path, rows: int, takes: Takes, seen: dict[str, str]) -> None:
    """Each row has one answer by its own parameters, or one dead letter. `seen`: texts of seeded rows in former jobs,
    which are the same in this one; its own are added.
    """
    refused = {number: each for number, each in takes.refused.items() if number < rows}
    dead = rows_of(folder, "c.dead_letters-*.jsonl")
    assert sorted(_number(each) for each in dead) == sorted(refused), dead
    for letter in dead:
        expected = refused[_number(letter)]
        assert letter["error"] == expected.error, letter
        assert re.search(expected.reason, letter["reason"]), letter
    found = rows_of(folder, "c-*.jsonl")
    answers = {_number(each): each for each in found}
    assert len(answers) == len(found), "a row was answered twice"
    assert answers.keys() == {*range(rows)} - refused.keys()
    for number, answer in answers.items():
        _expect_answer(answer, row(number, takes), takes)
    if takes.has_model:
        assert sum(each["finish_reason"] == "stop" for n, each in answers.items() if kind_of(n) == "stopped") > 0
        _expect_those_of_generate(answers, takes)
        _expect_logprobs_of_generate(answers, takes)
        seeded = {each["id"]: each["text"] for n, each in answers.items() if "seed" in row(n, takes)}
        assert sum(seen.get(name, text) != text for name, text in seeded.items()) <= DIFFER
        seen |= seeded
    else:
        stopped = [asked for asked in (row(number, takes) for number in answers) if "stop" in asked]
        assert any(words_of(asked) != counted(asked["prompt"], asked["max_tokens"]) for asked in stopped)


def _expect_answer(answer: dict[str, Any], asked: dict[str, Any], takes: Takes) -> None:
    """It is by the row's own parameters."""
    assert not [stop for stop in asked.get("stop", ()) if stop in answer["text"]], answer
    if not takes.has_model:
        assert answer["text"] in (words_of(asked), words_of(asked).rstrip()), answer
        return
    if answer["finish_reason"] == "length":
        assert answer["usage"]["completion_tokens"] == asked["max_tokens"], answer
    else:
        assert answer["finish_reason"] == "stop", answer
        assert "stop" in asked or not asked.get("ignore_eos"), answer
    _expect_logprobs(answer, asked.get("logprobs"))
    if "constraint" in asked:
        assert _meets(answer["text"], asked["constraint"]), answer


def _expect_logprobs(answer: dict[str, Any], count: int | None) -> None:
    """There are finite ones, with so many alternatives, where they are asked for."""
    found = answer.get("logprobs") or []
    assert bool(found) is (count is not None), answer
    for token in found:
        numbers = [token["logprob"], *(each["logprob"] for each in token["top_logprobs"])]
        assert len(numbers) == 1 + (count or 0), answer
        assert all(math.isfinite(number) and number <= 1e-3 for number in numbers), answer


def _meets(text: str, constraint: dict[str, Any]) -> bool:
    match constraint:
        case {"choice": choices}:
            return text in choices
        case {"json_schema": _}:
            value = json.loads(text)
            is_whole = [*map(type, (value["n"], value["ok"]))] == [int, bool]
            return is_whole and value.keys() == {"n", "ok"} and 0 <= value["n"] <= 99
        case {"regex": pattern}:
            return re.fullmatch(pattern, text) is not None
        case _:
            return text in ("yes!", "no!")


def _expect_those_of_generate(answers: Mapping[int, dict[str, Any]], takes: Takes) -> None:
    """Greedy answers differ where rounding decides between two tokens alone, and few do."""
    expected = greedy_answers(takes.chats)
    found = {number: each for number, each in answers.items() if kind_of(number) == "greedy"}
    other = {number: each for number, each in found.items() if each["text"] != _text(expected[number].token_ids)}
    why = {each["text"]: expected[number].unexplained(_tokens(each)) for number, each in other.items()}
    assert not [*filter(None, why.values())], why
    assert len(other) <= DIFFER, why


def _expect_logprobs_of_generate(answers: Mapping[int, dict[str, Any]], takes: Takes) -> None:
    """Each token's log-probability is the largest that `model.generate` has at its position, in all answers but a few.

    Some engines give none for the end-of-sequence token, so an answer may have one less.
    """
    different = []
    for number, answer in answers.items():
        if found := [each["logprob"] for each in answer.get("logprobs") or ()]:
            expected = greedy_answers(takes.chats)[_greedy_one_of(number)]
            likeliest = expected.logits[:8].log_softmax(-1).amax(-1).tolist()
            assert len(likeliest) - len(found) in (0, 1), answer
            if found != pytest.approx(likeliest[: len(found)], abs=0.01):
                different.append((answer, likeliest))
    assert len(different) <= DIFFER, different


@cache
def greedy_answers(chats: bool) -> Mapping[int, Generated]:
    """What `model.generate` answers to the greedy rows in float32, by their numbers."""
    asked = {number: row(number, Takes()) for number in range(ROWS) if kind_of(number) == "greedy"}
    found = generated([each["prompt"] for each in asked.values()], 24, chats=chats)
    return dict(zip(asked, found, strict=True))


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve(EMBEDDED_MODEL))


def _text(ids: list[int]) -> str:
    return str(_tokenizer().decode(ids, skip_special_tokens=True))


def _tokens(answer: dict[str, Any]) -> list[int]:
    """As the tokenizer reads its text, with the end-of-sequence token behind it if it ended by itself."""
    ends = [_tokenizer().eos_token_id] * (answer["finish_reason"] == "stop")
    return [*_tokenizer()(answer["text"], add_special_tokens=False).input_ids, *ends]


def words_of(asked: dict[str, Any]) -> str:
    """What a model answers that repeats words of the prompt."""
    text = counted(asked["prompt"], asked["max_tokens"])
    for stop in asked.get("stop", ()):
        text = text.partition(stop)[0]
    return f"{text} seed={asked['seed']}" if "seed" in asked else text


def _number(found: dict[str, Any]) -> int:
    return int(found["id"][1:])

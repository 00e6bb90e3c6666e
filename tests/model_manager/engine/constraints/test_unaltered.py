"""A constraint never alters what the model would have answered within it: the grammar's mask, and nothing more.

Budgets have no say in which tokens are allowed, from the first token to the last; and what is cut is the model's own up
to where it was closed.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from millrace.model_manager.engine.constraints.preparation import guide_alone
from millrace.model_manager.engine.scheduling.admission import admitted
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.constraints.random_outputs import COMPILER, FOLDER
from tests.model_manager.engine.constraints.random_schemas import schemas
from tests.model_manager.engine.constraints.schema_corpus import CORPUS, corpus
from tests.model_manager.engine.history_runner import EngineUnderTest, HistoryRunner

VOCAB_SIZE, EOS = 2000, 1
RULES = StopRules.load(FOLDER, [EOS])
BUDGETS = (128, 256, 1024)
TOKENIZER = COMPILER.tokenizer
PIECES = [TOKENIZER.decode_bytes([token]) for token in range(VOCAB_SIZE)]


class OwnLogits(HistoryRunner):
    """Logits over the vocabulary of the embedded model, a function of prompt and output."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = [EOS]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(num_blocks=1200, max_model_len=2048)


class Decided(OwnLogits):
    """A model that wants to say one text and then end, in whatever tokens it may: the prompt is its index."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = [text.encode() for text in texts]

    def _logits(self, history: list[int]) -> torch.Tensor:
        said = b"".join(PIECES[token] for token in history[1:])
        rest = self._texts[history[0]][len(said) :]
        wanted = [len(piece) if piece and rest.startswith(piece) else -9.0 for piece in PIECES]
        wanted[EOS] = -9.0 if rest else 9.0
        return torch.tensor(wanted)


class Random(OwnLogits):
    """A model of other logits for each seed, which is the prompt."""

    def _logits(self, history: list[int]) -> torch.Tensor:
        return torch.from_numpy(random_logits(history))


def random_logits(history: list[int]) -> np.ndarray[Any, Any]:
    """[VOCAB_SIZE]; what closes things is likelier, or few outputs would come to their end."""
    logits = np.random.default_rng([len(history), *history]).normal(size=VOCAB_SIZE).astype(np.float32)
    for piece, more in ((b'"', 2.0), (b"}", 2.0), (b"]", 2.0), (b'"}', 2.0)):
        logits[PIECES.index(piece)] += more
    return logits


def run(runner: OwnLogits, *requests: Request) -> EngineUnderTest:
    """What an engine makes of the requests, all at once."""
    under_test = EngineUnderTest(
        runner, max_num_seqs=8, max_num_batched_tokens=64, grammars=COMPILER, stop_rules=RULES, prefix_caching=False
    )
    for request in requests:
        under_test.engine.add(request)
    under_test.finish()
    return under_test


def asked(name: str, prompt: int, constraint: Constraint, max_tokens: int) -> Request:
    return Request(name, [prompt], SamplingParams(temperature=0.0, constraint=constraint, max_tokens=max_tokens))


def said(output: Output) -> str:
    """Its text."""
    return b"".join(PIECES[token] for token in output.token_ids if token != EOS).decode()


def pattern(expression: str) -> dict[str, Any]:
    return {"json_schema": {"type": "string", "pattern": expression}}


def optional(**fields: Any) -> dict[str, Any]:
    return {"json_schema": {"type": "object", "properties": fields, "additionalProperties": False}}


PLACE = {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number", "minimum": -180}}}
NAMED: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": {"type": "number", "minimum": -100, "maximum": 100}}, "-7"),
    ({"json_schema": {"type": "number", "minimum": -100}}, "-7"),
    ({"json_schema": {"type": "number", "minimum": -100}}, "-0.25"),
    ({"json_schema": PLACE | {"required": ["lat", "lon"]}}, '{"lat":19.4326,"lon":-99.1332}'),
    (optional(weight={"type": "string", "pattern": r"^\d+kg$"}), '{"weight":"75kg"}'),
    (
        optional(weights={"type": "array", "items": {"pattern": r"^\d+kg$", "type": "string"}}),
        '{"weights":["7kg","8kg"]}',
    ),
    (optional(link={"type": "string", "format": "uri"}), '{"link":"https://example.com/a?b=c"}'),
    (optional(lasts={"type": "string", "format": "duration"}), '{"lasts":"P1DT12H"}'),
    ({"json_schema": {"type": "string", "format": "duration"}}, '"P3Y6M4DT12H30M5S"'),
    ({"json_schema": {"type": "array", "items": {"type": "string", "format": "uri"}}}, '["http://a.org","b:c"]'),
    (pattern(r"^\d+\.\d+\.\d+$"), '"10.20.30"'),
    (pattern(r"^\d+(\.\d+)?%$"), '"12.5%"'),
    (pattern(r"^PT\d+(M|H|S)$"), '"PT90M"'),
    (pattern(r"^\d+x\d+$"), '"1920x1080"'),
    ({"regex": r"\d+x\d+"}, "1920x1080"),
    ({"regex": r"\d+kg"}, "75kg"),
    ({"json": True}, '[{"a":[],"b":{}},[[]],-0.5e-7,""]'),
    ({"choice": ["no", "yes", "perhaps it is so"]}, "perhaps it is so"),
    ({"grammar": 'start: "(" start ")" | "x"'}, "((((((x))))))"),
]


@pytest.mark.parametrize(("fields", "text"), NAMED, ids=[text for _, text in NAMED])
def test_a_model_that_knows_its_answer_gives_it_at_every_budget(fields: dict[str, Any], text: str) -> None:
    constraint = Constraint(**fields)
    ample = run(Decided([text]), asked("", 0, constraint, 1024)).outputs[""]
    own = len(ample.token_ids)
    budgets = (own, own + 1, 128, 200, 256, 300, 400, 600, 900, 1024)
    outputs = run(Decided([text]), *(asked(str(most), 0, constraint, most) for most in budgets)).outputs
    assert {said(output) for output in outputs.values()} == {text}
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.STOP}
    assert {output.num_own_tokens for output in outputs.values()} == {None}


def refused(constraint: Constraint, text: str, max_tokens: int) -> str | None:
    """What hinders an output of that text, in the tokenizer's own tokens, in all that holds one sequence."""
    request = asked("", 5, constraint, max_tokens)
    sequence = admitted(request, vocab_size=VOCAB_SIZE, max_len=4096, stop_rules=RULES, known=(), now=0.0)
    guide_alone(sequence, COMPILER)
    tokens = TOKENIZER.tokenize_str(text)
    for token in [*tokens, EOS]:
        if sequence.append(token) is not None:
            break
    ending = sequence.ending
    whole = ending is not None and ending.reason is FinishReason.STOP and not ending.is_cut
    kept = sequence.output_token_ids[: len(tokens)] == tokens
    return None if whole and kept else f"{text[:80]} at {max_tokens}: {ending}"


@pytest.mark.skipif(not CORPUS.is_file(), reason="shared/data/jsonschemas.jsonl.gz is not beside the checkout")
def test_every_valid_instance_of_public_schemas_is_let_through_at_every_budget() -> None:
    wrong, count = [], 0
    for case in corpus():
        constraint = Constraint(json_schema=case.schema)
        for text in instances(constraint, case.valid):
            least = len(TOKENIZER.tokenize_str(text)) + 1
            for budget in (least, *(budget for budget in BUDGETS if budget > least)):
                wrong += [said for said in [refused(constraint, text, budget)] if said]
            count += 1
    assert wrong == []
    assert count >= 400, "of 578 valid instances those whose keys come in the schema's order"


def instances(constraint: Constraint, values: list[Any]) -> list[str]:
    """The texts of those that the bare grammar takes as they are written."""
    try:
        grammar = COMPILER.compile(constraint)
    except InvalidRequest:
        return []
    texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values]
    return [text for text in texts if takes(grammar, text)]


def takes(grammar: Grammar, text: str) -> bool:
    matcher, tokens = grammar.matcher(), TOKENIZER.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def bare(grammar: Grammar, seed: int, most: int) -> list[int]:
    """The greedy output under the grammar alone: its forced tokens, else the likeliest of its mask."""
    matcher, output = grammar.matcher(), list[int]()
    while len(output) < most and not matcher.is_stopped():
        forced = matcher.compute_ff_tokens()
        output.append(forced[0] if forced else likeliest(matcher, [seed, *output]))
        assert matcher.consume_token(output[-1])
    return output


def likeliest(matcher: Any, history: list[int]) -> int:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:VOCAB_SIZE]
    return int(np.where(bits, random_logits(history), -np.inf).argmax())


LONGEST = 120
OTHERS = st.sampled_from(
    [
        {"regex": r"\d+(\.\d+)?%( of \d{1,3}kg)*"},
        {"regex": "(?s:.{0,12})[a-z]{2}"},
        {"grammar": 'start: "[" (start ("," start)*)? "]"'},
        {"grammar": 'start: "<a>" /[^<]*/ "</a>"'},
        {"choice": ["yes", "no", "perhaps", "no, never"]},
        {"json": True},
    ]
)


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(schemas.map(lambda schema: {"json_schema": schema}), OTHERS),
    st.integers(0, VOCAB_SIZE - 1),
    st.lists(st.integers(1, LONGEST), max_size=5),
)
def test_a_greedy_output_is_that_under_the_bare_grammar(fields: dict[str, Any], seed: int, budgets: list[int]) -> None:
    constraint = Constraint(**fields)
    try:
        grammar = COMPILER.compile(constraint)
    except InvalidRequest:
        assume(False)
    expected = bare(grammar, seed, LONGEST)
    ends = len(expected) < LONGEST
    budgets = [*budgets, LONGEST, *([len(expected)] * ends)]
    requests = [asked(f"{place} {most}", seed, constraint, most) for place, most in enumerate(budgets)]
    found = run(Random(), *requests)
    for request in requests:
        check(request, found, expected, ends=ends)


def check(request: Request, found: EngineUnderTest, expected: list[int], *, ends: bool) -> None:
    most, output = request.params.max_tokens, found.outputs.get(request.request_id)
    if ends and len(expected) <= most:
        assert output is not None
        assert output.token_ids == expected
        assert (output.finish_reason, output.num_own_tokens) == (FinishReason.STOP, None)
    elif output is None:
        assert found.failures[request.request_id] == "ConstraintNotMet"
    else:
        own = most if output.num_own_tokens is None else output.num_own_tokens
        assert output.finish_reason is FinishReason.LENGTH
        assert output.token_ids[:own] == expected[:own]
        assert len(output.token_ids) <= most

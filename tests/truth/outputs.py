"""Checks that constrained greedy outputs of the engine are what a mask and an argmax give, and meet the constraints.

    python -m tests.truth.outputs --count 100 --seed 0

Random constraints (schemas, the corpus, regular expressions, choices, grammars, any JSON) and budgets run together in
the engine, in float32, on the embedded model and on a tiny random one. Each output has to have the tokens of
reference.py's loop, one that was cut up to where it was closed, and to validate. Prints what differs, with the kind of
difference:

    tokens    another token than the loop's
    forced    likewise, and it is the one that llguidance proposes where the text that must follow is known
    cut       likewise, or the loop comes to its end within the budget, and the output says that it was cut
    tie       likewise, but the two logits differ by less than 0.001, so rounding decided; not counted
    invalid   a text that is not of its constraint
    failed    the engine failed a request that the loop answers within its budget

The last line is the count. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from millrace.model_manager.client.generation import text_of
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.engine.interface import Engine
from millrace.model_manager.wire.common_beginning import common_beginning
from millrace.model_manager.wire.request import Failure, FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.truth.constraints_drawn import Drawn, drawn
from tests.truth.engines import FOLDER, answers, started
from tests.truth.models import write_byte_level
from tests.truth.reference import Reference, ReferenceFailed, Step

PROMPTS = (
    "The order of Ann, 3 apples and 12 pears, was placed on 2026-01-31.",
    "What is the capital of Japan?",
    "Is 12 more than 7? Answer yes or no:",
    "Extract the fields as JSON: Order 77 from Anna Larsen: 2 lamps, 4.50 EUR each, ship to Oslo.",
)
_WRONG = ("tokens", "forced", "cut", "invalid", "failed")
_TIE = 1e-3
_TOO_FEW = ("ConstraintNotMet", "InvalidRequest")
"""Failures that may be right: of what takes more tokens than there are, and of what no grammar is made of."""


@dataclass(frozen=True)
class Case:
    """A request, and what it is held to."""

    request: Request
    drawn: Drawn

    @property
    def title(self) -> str:
        """What names it in a report."""
        said = msgspec.to_builtins(self.drawn.constraint)
        budget = f"max_tokens={self.request.params.max_tokens}"
        return f"{self.request.request_id} {budget} {json.dumps(said, ensure_ascii=False)[:400]}"


@dataclass(frozen=True)
class Difference:
    """What is wrong with an answer."""

    kind: str
    said: str


def main(argv: Sequence[str] | None = None) -> int:
    """1 if anything differs, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.truth.outputs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="how many outputs")
    parser.add_argument("--seed", type=int, default=0, help="of constraints, prompts and budgets")
    args = parser.parse_args(argv)
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        folders = {"tiny": write_byte_level(Path(folder)), "embedded": FOLDER}
        counts = {"tiny": args.count // 3, "embedded": args.count - args.count // 3}
        for name, count in counts.items():
            counted += compared(name, folders[name], count, args.seed)
    wrong = sum(counted[kind] for kind in _WRONG)
    others = ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items()))
    print(f"{wrong} of {args.count} outputs differ ({others})")
    return 1 if wrong else 0


def compared(name: str, folder: Path, count: int, seed: int) -> Counter[str]:
    """How the outputs of a model came out, by kind; prints those that differ."""
    tokenizer, reference = Tokenizer.load(folder), Reference(folder)
    cases = list(_cases(name, tokenizer, count, seed))
    found = answers(_engine(folder), [case.request for case in cases])
    counted: Counter[str] = Counter()
    for case in cases:
        result = judged(case, found[case.request.request_id], reference, tokenizer)
        counted[result if isinstance(result, str) else result.kind] += 1
        if isinstance(result, Difference):
            print(f"{result.kind}: {case.title}\n    {result.said}", flush=True)
    return counted


def _engine(folder: Path) -> Engine:
    return started(folder, dtype="float32", max_num_seqs=16)


def _cases(name: str, tokenizer: Tokenizer, count: int, seed: int) -> Iterator[Case]:
    chance = random.Random(f"{name} {seed}")
    for number in range(count):
        held = drawn(chance, seed)
        budget = chance.choice([chance.randint(1, 16), chance.randint(16, 64), chance.randint(64, 400)])
        params = SamplingParams(max_tokens=budget, constraint=held.constraint)
        prompt = tokenizer.encode(chance.choice(PROMPTS))
        yield Case(Request(f"{name}-{held.kind}-{number}", prompt, params), held)


def judged(case: Case, answer: Output | Failure, reference: Reference, tokenizer: Tokenizer) -> Difference | str:
    """What is wrong with an answer, or in a word how it came out."""
    budget = case.request.params.max_tokens
    if isinstance(answer, Failure) and answer.error.kind == "InvalidRequest":
        return "refused"
    try:
        steps = reference.output(case.request.prompt_token_ids, case.drawn.constraint, budget)
    except ReferenceFailed:
        return "beyond the loop"
    if isinstance(answer, Failure):
        whole = len(steps) < budget
        said = f"{answer.error.kind}: {answer.error.message}"
        return Difference("failed", said) if whole or answer.error.kind not in _TOO_FEW else "failed as the loop"
    text = text_of(answer, case.request.params, tokenizer)
    wrong = case.drawn.wrong(text)
    if wrong is not None:
        return Difference("invalid", f"{wrong[:200]}: {text[:200]!r}")
    own = answer.num_own_tokens
    found = _other_tokens(answer.token_ids[:own], steps[:own], tokenizer)
    if found is None and answer.finish_reason is FinishReason.LENGTH and len(steps) < budget:
        found = Difference("cut", f"closed after {own} tokens, the loop ends after {len(steps)}")
    return found or ("equal" if own is None else "closed")


def _other_tokens(given: Sequence[int], steps: Sequence[Step], tokenizer: Tokenizer) -> Difference | None:
    expected = [step.token for step in steps]
    if list(given) == expected:
        return None
    at = common_beginning(given, expected)
    said = f"from token {at} on {tokenizer.decode(given)[:120]!r}, the loop {tokenizer.decode(expected)[:120]!r}"
    if at < len(steps) and at < len(given):
        step = steps[at]
        if step.gap < _TIE:
            return Difference("tie", said)
        if step.forced[:1] == [given[at]]:
            return Difference("forced", said)
    return Difference("tokens", said)


if __name__ == "__main__":
    raise SystemExit(main())

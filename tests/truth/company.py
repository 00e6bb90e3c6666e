"""Counts the rows whose tokens differ in a batch and alone: rows with penalties, half of them sampled.

    python -m tests.truth.company --dtype bfloat16 --rows 200

Each row runs alone in the engine (or `--at_once` of them do), then all run together in it, up to 64 at once; nothing is
taken from a prefix cache. Prints each row that differs, with the token where it does, then their number. The last line
is JSON. Exits with 1 if a row differs.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from typing import Any

from examples.embedded_model.data import examples
from examples.embedded_model.split import Split
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.wire.common_beginning import common_beginning
from millrace.model_manager.wire.request import Failure, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.truth.engines import FOLDER, answers, started

KINDS = ("capitals", "arithmetic", "sentiment", "extraction")
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantization": "int8"},
    "int8-bfloat16": {"dtype": "bfloat16", "quantization": "int8"},
}
MAX_TOKENS = 64


def main(argv: Sequence[str] | None = None) -> int:
    """1 if a row differs, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.truth.company", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=SETTINGS, default="float32", help="what the engine computes in")
    parser.add_argument("--rows", type=int, default=200, help="how many rows")
    parser.add_argument("--seed", type=int, default=0, help="of the rows")
    parser.add_argument("--at_once", type=int, default=1, help="how many run at first, before all do")
    args = parser.parse_args(argv)
    found = differing(rows(args.rows, args.seed), SETTINGS[args.dtype], args.at_once)
    for name, at in found.items():
        print(f"{name}: differs from token {at} on")
    print(f"{len(found)} of {args.rows} rows differ")
    print(json.dumps({**vars(args), "differ": len(found)}))
    return 1 if found else 0


def rows(count: int, seed: int) -> list[Request]:
    """Questions for the embedded model, with penalties that make its answers long."""
    chance, tokenizer = random.Random(seed), Tokenizer.load(FOLDER)
    questions = [one.prompt for kind in KINDS for one in examples(kind, -(-count // len(KINDS)), seed, Split.HELD_OUT)]
    made = []
    for number, question in enumerate(chance.sample(questions, count)):
        ids = tokenizer.encode(tokenizer.chat_text([{"role": "user", "content": question}]), add_special_tokens=False)
        made.append(Request(f"row-{number}", ids, SamplingParams.parse(_params(chance, number))))
    return made


def _params(chance: random.Random, number: int) -> dict[str, Any]:
    sampled = {"temperature": 0.8, "top_p": 0.95, "seed": number} if number % 2 else {}
    return sampled | {
        "max_tokens": MAX_TOKENS,
        "min_tokens": MAX_TOKENS // 2,
        "repetition_penalty": round(chance.uniform(1.05, 1.5), 2),
        "frequency_penalty": round(chance.uniform(0, 0.5), 2),
        "presence_penalty": round(chance.uniform(0, 0.5), 2),
    }


def differing(requests: Sequence[Request], settings: dict[str, Any], at_once: int = 1) -> dict[str, int]:
    """Rows whose tokens among all are not those alone, and the first token that is not."""
    engine = started(prefix_caching=False, **settings)
    alone: dict[str, Output | Failure] = {}
    for first in range(0, len(requests), at_once):
        alone |= answers(engine, requests[first : first + at_once])
    together = answers(engine, requests)
    assert alone.keys() == together.keys()
    pairs = {name: (_tokens(alone[name]), _tokens(together[name])) for name in alone}
    return {name: common_beginning(*pair) for name, pair in pairs.items() if pair[0] != pair[1]}


def _tokens(answer: Output | Failure) -> list[int]:
    assert isinstance(answer, Output), f"{answer.request_id} failed: {answer.error}"
    return answer.token_ids


if __name__ == "__main__":
    raise SystemExit(main())

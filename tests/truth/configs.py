"""Checks that random configs of the served architectures are answered as transformers answers them, or refused.

    python -m tests.truth.configs --count 100 --seed 1

Each draw is a tiny checkpoint with random weights in float32, whose config has some fields set otherwise, and an engine
with random budgets. Its greedy answers must equal transformers' `generate`, or the model is refused in one
sentence. A draw that transformers itself makes nothing of counts as neither. `--each` tries every field of the config
classes alone instead (`--architecture`: of one). Prints what differs; the last line is the count. Exits with 1 if any
config differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError, ModelUnsupported
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.random_checkpoints import VOCAB, greedy
from tests.model_manager.engine.tested_models import MODELS
from tests.model_manager.engine.whole_engines import greedy_tokens, load_engine
from tests.truth.config_draws import Draw, draw, each_alone

MOST_PROMPT, MOST_OUTPUT, PROMPTS = 64, 12, 5
TIE = 1e-3
"""Two tokens whose logits are as near as this, as a part of the largest, are either's to choose."""


def main(argv: Sequence[str] | None = None) -> int:
    """1 if an answer differs, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.truth.configs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="how many configs are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of configs, budgets, weights and prompts")
    parser.add_argument(
        "--architecture", choices=sorted({case.architecture for case in MODELS}), help="of this one alone"
    )
    parser.add_argument("--each", action="store_true", help="every field alone instead of random ones")
    parser.add_argument("--refusals", action="store_true", help="print what is refused or not made too, and why")
    args = parser.parse_args(argv)
    chance, seen = random.Random(args.seed), Counter[str]()
    with _quiet():
        for one in _draws(args, chance):
            outcome = judged(one, random.Random(chance.random()))
            kind = outcome.partition(":")[0]
            seen[kind] += 1
            if kind == "differs" or (kind != "same" and args.refusals):
                print(f"{one}\n    {outcome}", flush=True)
    print(f"{seen['differs']} of {seen.total()} configs differ ({_summary(seen)})")
    return 1 if seen["differs"] else 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within, no warning is logged, and torch has one thread: in models so small threads only wait for each other."""
    disabled, threads = logging.root.manager.disable, torch.get_num_threads()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        logging.disable(disabled)
        torch.set_num_threads(threads)


def _draws(args: argparse.Namespace, chance: random.Random) -> Iterator[Draw]:
    if not args.each:
        yield from (draw(chance, args.architecture) for _ in range(args.count))
        return
    for case in MODELS:
        if args.architecture in (None, case.architecture):
            yield from each_alone(case)


def _summary(seen: Counter[str]) -> str:
    return ", ".join(f"{seen[kind]} {kind}" for kind in ("same", "refused", "not made"))


def judged(one: Draw, chance: random.Random) -> str:
    """`same`, `refused: sentence`, `not made: why` (by transformers) or `differs: how`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            model = _made(one, folder)
            asked = [_prompt(chance) for _ in range(PROMPTS)]
            wanted = [greedy(model, prompt, count) for prompt, count in asked]
        except Exception as error:  # whatever a field makes transformers raise
            return f"not made: {type(error).__name__}: {str(error)[:200]}"
        try:
            settings = _budgets(chance)
            got = _answers(folder, settings, asked)
        except (ModelUnsupported, ConfigError) as error:
            is_sentence = 0 < len(str(error)) < 900 and "\n" not in str(error)
            return f"refused: {error}" if is_sentence else f"differs: a refusal of {len(str(error))} letters: {error}"
        except Exception as error:
            return f"differs: {type(error).__name__}: {error}"
        for (prompt, _), ours, theirs in zip(asked, got, wanted, strict=True):
            at = next((k for k, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), None)
            if at is not None and not _is_tie(model, prompt + theirs[:at], ours[at], theirs[at]):
                return f"differs: {settings}, a prompt of {len(prompt)} tokens, from token {at} on"
    return "same"


def _made(one: Draw, folder: Path) -> Any:
    """The checkpoint, and what transformers loads of it."""
    config = one.config()
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        random_checkpoints.write(folder, config)
        return getattr(transformers, one.case.architecture).from_pretrained(folder).eval()


def _prompt(chance: random.Random) -> tuple[list[int], int]:
    """Token ids, and how many more are asked for."""
    length = chance.randint(1, MOST_PROMPT)
    return [chance.randrange(2, VOCAB) for _ in range(length)], chance.randint(1, MOST_OUTPUT)


def _budgets(chance: random.Random) -> dict[str, Any]:
    sequences = chance.choice([1, 2, 5, 8])
    tokens = max(sequences, chance.choice([3, 7, 16, 33, 512]))
    return {"max_num_seqs": sequences, "max_num_batched_tokens": tokens, "block_size": chance.choice([8, 16, 32])}


def _answers(folder: Path, settings: dict[str, Any], asked: list[tuple[list[int], int]]) -> list[list[int]]:
    config = ModelConfig(model=str(folder), kv_cache_gib=0.02, dtype="float32", num_threads=1, **settings)
    return greedy_tokens(load_engine(folder, config), asked)


def _is_tie(model: Any, tokens: list[int], ours: int, theirs: int) -> bool:
    logits = model(torch.tensor([tokens])).logits[0, -1]
    return bool((logits[theirs] - logits[ours]).abs() <= TIE * logits.abs().max())


if __name__ == "__main__":
    raise SystemExit(main())

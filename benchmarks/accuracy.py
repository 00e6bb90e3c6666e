"""The cost of rounding: the embedded model's answers to held-out questions under every format of weights and cache.

    python -m benchmarks.accuracy                    # the embedded model
    python -m benchmarks.accuracy --folder DIR       # any model's agreement with itself in float32, on random prompts

For each format: perplexity of the right answers (teacher-forced, the mean over their tokens and the end-of-sequence
token), the share of answers that are exactly right, and how far greedy outputs agree with float32's: the share of
identical outputs, and of tokens before the first difference. The last line of the output is JSON. Formats that only a
GPU serves are computed on the CPU here, by the same code and slowly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.command_line import command_line
from examples.embedded_model.data import KINDS, Conversation, examples
from examples.embedded_model.split import Example, Split
from examples.embedded_model.tokenizer import encode
from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.interface import StepInput
from millrace.model_manager.engine.loading import placement
from millrace.model_manager.engine.loading.model_loader import LoadedModel, load_model
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.common_beginning import common_beginning
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.sampling import SamplingParams

SEED = 50_000
Tokens = list[int]

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "fp8": {"quantization": "fp8"},
    "float32 + int8 cache": {"kv_cache_dtype": "int8"},
    "float32 + fp8 cache": {"kv_cache_dtype": "fp8"},
    "int8 + int8 cache": {"quantization": "int8", "kv_cache_dtype": "int8"},
    "int4 + int8 cache": {"quantization": "int4", "kv_cache_dtype": "int8"},
    "bfloat16, int8 + int8 cache": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
}


@dataclass(frozen=True)
class Asked:
    """A prompt's tokens and, where it is known, the answer's."""

    prompt: Tokens
    answer: Tokens | None = None


@dataclass(frozen=True)
class Measured:
    """One format's figures; None where there are no right answers to compare with."""

    perplexity: float | None
    right: float | None
    identical: float
    agreeing_tokens: float

    def __str__(self) -> str:
        known = [] if self.right is None else [f"perplexity {self.perplexity:.5f}", f"right {self.right:.2%}"]
        agreement = [f"identical {self.identical:.2%}", f"tokens agreeing {self.agreeing_tokens:.2%}"]
        return ", ".join(known + agreement)


def held_out(folder: Path, count: int) -> list[Asked]:
    """`count` questions of each kind that the embedded model was not trained on."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = [example for kind in KINDS for example in examples(kind, count, SEED, Split.HELD_OUT)]
    return [_asked(tokenizer, example) for example in found]


def _asked(tokenizer: Tokenizer, example: Example) -> Asked:
    tokens, is_answer = encode(tokenizer, Conversation((example,)))
    start = is_answer.index(True)
    return Asked(tokens[:start], tokens[start:])


def random_prompts(vocab_size: int, count: int) -> list[Asked]:
    """Prompts of 8 to 71 random tokens."""
    generator = np.random.default_rng(SEED)
    return [Asked(generator.integers(10, vocab_size, 8 + n % 64).tolist()) for n in range(count)]


def outputs(loaded: LoadedModel, config: ModelConfig, asked: Sequence[Asked], most: int) -> list[Tokens]:
    """Greedy outputs of the engine, in the order of the prompts."""
    engine = LLMEngine(loaded.runner, loaded.info, config, StopRules(frozenset(loaded.info.eos_token_ids), None))
    for index, one in enumerate(asked):
        params = SamplingParams(max_tokens=most)
        engine.add(Request(request_id=str(index), prompt_token_ids=one.prompt, params=params))
    found: dict[str, Tokens] = {}
    while engine.has_work():
        found |= {output.request_id: output.token_ids for output in engine.step().outputs}
    return [found[str(index)] for index in range(len(asked))]


def perplexity(loaded: LoadedModel, asked: Sequence[Asked]) -> float:
    """Perplexity of the answers: each token is predicted from the prompt and the right tokens before it."""
    surprise = [_surprise(loaded, one.prompt, one.answer) for one in asked if one.answer is not None]
    return math.exp(float(torch.cat(surprise).mean()))


def _surprise(loaded: LoadedModel, prompt: Tokens, answer: Tokens) -> torch.Tensor:
    """[answer] negative log-likelihood."""
    tokens = np.array(prompt + answer[:-1], np.int64)
    positions = np.arange(len(tokens), dtype=np.int64)
    step = StepInput(
        token_ids=tokens,
        positions=positions,
        slots=positions,
        query_starts=np.array([0, len(tokens)], np.int32),
        context_lens=np.array([len(tokens)], np.int32),
        block_tables=np.arange(-(-len(tokens) // loaded.info.block_size), dtype=np.int32)[np.newaxis],
        logits_rows=positions[len(prompt) - 1 :],
    )
    likelihood: torch.Tensor = loaded.runner.execute(step).logits.log_softmax(-1)
    return -likelihood.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)


def measure(folder: Path, asked: Sequence[Asked], most: int, formats: Sequence[str]) -> Iterator[tuple[str, Measured]]:
    """The figures of each format, float32 first."""
    reference: list[Tokens] = []
    for name in ["float32", *(name for name in formats if name != "float32")]:
        fields = {"dtype": "float32"} | FORMATS[name]
        config = ModelConfig(model=str(folder), device="cpu", num_threads=1, kv_cache_gib=0.25, **fields)
        with mock.patch.object(placement, "check_formats"):
            loaded = load_model(config, folder)
        found = outputs(loaded, config, asked, most)
        reference = reference or found
        known = [(one.answer, tokens) for one, tokens in zip(asked, found, strict=True) if one.answer is not None]
        yield (
            name,
            Measured(
                perplexity=perplexity(loaded, asked) if known else None,
                right=sum(answer == tokens for answer, tokens in known) / len(known) if known else None,
                identical=sum(map(list.__eq__, reference, found)) / len(found),
                agreeing_tokens=sum(map(common_beginning, reference, found)) / sum(map(len, reference)),
            ),
        )


def main() -> None:
    """Parse the command line, measure every format and print the figures."""
    parser = command_line("accuracy", __doc__)
    parser.add_argument("--folder", type=Path, help="a model's folder instead of the embedded one's")
    parser.add_argument("--count", type=int, default=100, help="questions of each kind, or random prompts")
    parser.add_argument("--max_tokens", type=int, default=160, help="most tokens of an answer")
    parser.add_argument(
        "--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS), help="of weights and cache"
    )
    options = parser.parse_args()
    folder: Path = options.folder or Path(resolve(EMBEDDED_MODEL))
    if options.folder:
        asked = random_prompts(json.loads((folder / "config.json").read_text())["vocab_size"], options.count)
    else:
        asked = held_out(folder, options.count)
    figures = {}
    for name, measured in measure(folder, asked, options.max_tokens, options.formats):
        print(f"{name}: {measured}", flush=True)
        figures[name] = vars(measured)
    print(json.dumps({"prompts": len(asked), "formats": figures}))


if __name__ == "__main__":
    main()

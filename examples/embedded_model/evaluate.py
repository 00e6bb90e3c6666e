"""Evaluate a folder with a model on held-out questions: `python -m examples.embedded_model.evaluate FOLDER`.

Greedy decoding with transformers' own `generate`; an answer is right if it equals the expected one exactly. Of rows of
documents the share of right fields is told too; how they come out of Extract, documents/evaluate.py says.
Prints the accuracy of each kind, the wrong answers on demand, and one line of JSON at the end.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from .data import EVALUATED, examples
from .documents.questions import DOCUMENT_KINDS
from .split import Example, Split

MAX_NEW_TOKENS = 256
BATCH_SIZE = 64
EVALUATION_SEED = 30_000

Model = Any  # a LlamaForCausalLM: transformers' annotations do not let one generate


@dataclass(frozen=True)
class Judged:
    """A held-out question and what the model said."""

    example: Example
    said: str

    @property
    def is_right(self) -> bool:
        """Whether the model said exactly what was expected."""
        return self.said == self.example.answer


def _batches(found: Sequence[Example]) -> Iterator[Sequence[Example]]:
    ordered = sorted(found, key=lambda example: len(example.prompt))
    for start in range(0, len(ordered), BATCH_SIZE):
        yield ordered[start : start + BATCH_SIZE]


def _chat(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    turns = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


@torch.inference_mode()
def answer(
    model: Model, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], max_new_tokens: int = MAX_NEW_TOKENS
) -> list[str]:
    """The model's greedy answer to each prompt, sent as one user turn through the chat template."""
    chats = [_chat(tokenizer, prompt) for prompt in prompts]
    inputs = tokenizer(chats, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
    output = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
    new_tokens = output[:, inputs["input_ids"].shape[1] :]
    return list(tokenizer.batch_decode(new_tokens, skip_special_tokens=True))


def judge(
    model: Model, tokenizer: PreTrainedTokenizerBase, found: Sequence[Example], max_new_tokens: int = MAX_NEW_TOKENS
) -> list[Judged]:
    """Ask every question and keep what was said."""
    judged = []
    for batch in _batches(found):
        said = answer(model, tokenizer, [example.prompt for example in batch], max_new_tokens)
        judged += [Judged(example, text) for example, text in zip(batch, said, strict=True)]
    return judged


def accuracy(judged: Sequence[Judged]) -> float:
    """The share of right answers."""
    return sum(one.is_right for one in judged) / len(judged)


def field_accuracy(judged: Sequence[Judged]) -> float:
    """The share of right values in answers that are JSON objects. Any other answer counts as all wrong."""
    pairs = [(_fields(one.example.answer), _fields(one.said)) for one in judged]
    right = sum(name in said and said[name] == value for expected, said in pairs for name, value in expected.items())
    asked = sum(len(expected) for expected, _ in pairs)
    return float(right) / asked


def _fields(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_float=Decimal)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def load(folder: Path) -> tuple[Model, PreTrainedTokenizerBase]:
    """The model in float32, as a CPU likes it, and its tokenizer."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def _figures(judged: Sequence[Judged]) -> dict[str, float]:
    found = {"n": len(judged), "accuracy": accuracy(judged)}
    return found | ({"fields": field_accuracy(judged)} if judged[0].example.kind in DOCUMENT_KINDS else {})


def _report(judged: Sequence[Judged], show_errors: int) -> None:
    kind, figures = judged[0].example.kind, _figures(judged)
    of_fields = f", fields {figures['fields']:.2%}" if "fields" in figures else ""
    print(f"{kind}: {figures['accuracy']:.2%} of {len(judged)}{of_fields}")
    for wrong in [one for one in judged if not one.is_right][:show_errors]:
        print(f"  {wrong.example.prompt!r}\n    expected {wrong.example.answer!r}\n    said     {wrong.said!r}")


def main() -> None:
    """Parse the command line, evaluate every kind, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000, help="questions of each kind")
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED)
    parser.add_argument("--kinds", nargs="+", choices=list(EVALUATED), default=list(EVALUATED))
    parser.add_argument("--show-errors", type=int, default=0, help="wrong answers of each kind to print")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.folder)
    figures = {}
    for kind in arguments.kinds:
        judged = judge(model, tokenizer, examples(kind, arguments.count, arguments.seed, Split.HELD_OUT))
        _report(judged, arguments.show_errors)
        figures[kind] = _figures(judged)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

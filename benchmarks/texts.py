"""Requests as text, for engines that take no token ids: of exactly as many tokens.

A word that is one token of the checkpoint's tokenizer stands for each token id, and a space is a part of each word, so
that the tokenizer (byte-level BPE, which cuts at spaces) makes the same number of tokens of the text.
Imports the standard library alone: a side's process runs in the peer's environment.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.workload import Item

_SPACE = "Ġ"
"""A space, as byte-level BPE writes it."""


def words_of(checkpoint: Path) -> list[str]:
    """The words that are one token, each with a space before it."""
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    whole = [token for token in vocabulary if token.startswith(_SPACE) and token[1:].isascii() and token[1:].isalpha()]
    return [f" {token[1:]}" for token in whole]


def text_of(item: Item, words: list[str]) -> str:
    """A prompt of as many tokens."""
    return "".join(words[token % len(words)] for token in item.prompt_token_ids)

"""A model's tokenizer for llguidance: the bytes of each token id, and the ids that end an output.

Supports byte-level and SentencePiece-style tokenizers. Ids of the logits that the tokenizer lacks are never allowed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer

from ..store.plain_decoder import plain_decoder
from ..wire.errors import ModelUnsupported


def load_tokenizer(folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The tokenizer of the folder's tokenizer.json, for logits of `vocab_size`; raises ModelUnsupported with the
    reason.
    """
    path = folder / "tokenizer.json"
    try:
        encoder = Tokenizer.from_file(str(path))
    except BaseException as error:  # tokenizers raises no narrower class, and its panics are no Exceptions
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ModelUnsupported(f"{path}: cannot be read: {error}") from None
    ends = sorted({token for token in eos_token_ids if 0 <= token < vocab_size})
    if not ends:
        raise ModelUnsupported(f"{path}: the model names no token that ends an output")
    _name_all(encoder, ends[-1])
    description = _described(encoder, vocab_size)
    try:
        return LLTokenizer(json.dumps(description), n_vocab=vocab_size, eos_token=ends)
    except BaseException as error:  # its panics are no Exceptions
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ModelUnsupported(f"{path}: constraints do not support this kind of tokenizer: {error}") from None


def _name_all(encoder: Tokenizer, last: int) -> None:
    """Give a name here to ids up to `last` that only the model's settings know, often an end-of-sequence token."""
    size = encoder.get_vocab_size(with_added_tokens=True)
    encoder.add_special_tokens([AddedToken(f"<|token {token}|>", normalized=False) for token in range(size, last + 1)])


def _described(encoder: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """tokenizer.json without added tokens beyond the logits, its decoder in a form that llguidance reads."""
    encoder.no_padding()
    encoder.no_truncation()
    description: dict[str, Any] = json.loads(encoder.to_str())
    description["added_tokens"] = [token for token in description["added_tokens"] if token["id"] < vocab_size]
    description["decoder"] = plain_decoder(description.get("decoder"))
    return description

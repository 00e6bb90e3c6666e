"""Finds a place to cut a text so that the tokens of both parts, joined, are the tokens of the whole, whatever text is
added at the end. A long prompt with many continuations is then tokenized once, except for its last words.

Knows tokenizers that first split a text between an ASCII letter and a space that a letter follows. GPT-2, Llama 3,
Qwen 2 and others do, with expressions that look one character ahead and none back. A cut there is sound if no added
token spans it or strips spaces at it. For any other tokenizer, texts are not cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

_BEHIND = r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
_BEFORE = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"""
EXPRESSIONS = (_BEFORE + r"\p{N}{1,3}" + _BEHIND, _BEFORE + r"\p{N}" + _BEHIND)
"""The expressions of Llama 3 and of Qwen 2; GPT-2's is built into ByteLevel."""
_CUT = re.compile("[A-Za-z](?= [A-Za-z])")
_SEARCHED = 4096
"""Characters at the end of a text in which a cut is looked for."""


class TextCuts:
    """Where texts may be cut for one tokenizer."""

    def __init__(self, encoder: Encoder, added: Iterable[AddedToken]) -> None:
        """`added` are the encoder's added tokens; it takes long to list many of them."""
        self._cuts = _splits_words(encoder) and not any(map(_reaches_over, added))

    def last(self, text: str) -> int:
        """How many characters the first part has; 0 where no cut is known to be sound."""
        if not self._cuts:
            return 0
        start = max(0, len(text) - _SEARCHED)
        return max((found.end() for found in _CUT.finditer(text, start)), default=0)


def _splits_words(encoder: Encoder) -> bool:
    normalizer, splitter = _description(encoder.normalizer), _description(encoder.pre_tokenizer)
    if normalizer is not None and normalizer["type"] != "NFC":  # a space is no part of what that composes
        return False
    if splitter is None or splitter["type"] != "Sequence":
        return splitter is not None and _is_byte_level(splitter, with_expression=True)
    parts = splitter["pretokenizers"]
    return len(parts) == 2 and _is_split(parts[0]) and _is_byte_level(parts[1], with_expression=False)


def _is_byte_level(part: dict[str, Any], *, with_expression: bool) -> bool:
    return part["type"] == "ByteLevel" and bool(part.get("use_regex", True)) == with_expression


def _is_split(part: dict[str, Any]) -> bool:
    if part["type"] != "Split" or part["behavior"] != "Isolated" or part["invert"]:
        return False
    return part["pattern"].get("Regex") in EXPRESSIONS


def _reaches_over(token: AddedToken) -> bool:
    """True if the added token may span a cut, or strip the space at one."""
    text = token.content
    return " " in text or (token.rstrip and text[-1:].isalpha()) or (token.lstrip and text[:1].isalpha())


def _description(part: Any) -> dict[str, Any] | None:
    """A part of a tokenizer as tokenizer.json has it."""
    described: dict[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return described

"""Finds a place to cut a text so that the tokens of both parts, joined, are the tokens of the whole, whatever text is
added at the end. A long prompt with many continuations is then tokenized once, except for its last words, and a text of
megabytes is tokenized in pieces: whole it takes 200 bytes of memory and more for each of its own.

Knows tokenizers that first split a text between an ASCII letter and a space that a letter follows. GPT-2, Llama 3,
Qwen 2 and others do, with expressions that look one character ahead and none back. A cut there is sound if no added
token spans it or strips spaces at it. For any other tokenizer, texts are not cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from unicodedata import is_normalized

from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

_BEHIND = r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
_BEFORE = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"""
EXPRESSIONS = (
    _BEFORE + r"\p{N}{1,3}" + _BEHIND,
    _BEFORE + r"\p{N}" + _BEHIND,
    r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s",
)
"""The expressions of Llama 3, of Qwen 2 and of the embedded model; GPT-2's is built into ByteLevel."""
_CUT = re.compile("[A-Za-z](?= [A-Za-z])")
_SEARCHED = 4096
"""Characters at the end of a text in which a cut is looked for."""
_PIECE = 2**18
"""Most characters of a piece."""
_ANY_TOKEN = 512
"""Characters; more than any token has: the longest are runs of spaces, 128 of them in Llama's and Qwen's tokenizers."""


class TextCuts:
    """Where texts may be cut for one tokenizer."""

    def __init__(self, encoder: Encoder, added: Iterable[AddedToken]) -> None:
        """`added` are the encoder's added tokens; it takes long to list many of them."""
        added = list(added)
        self._cuts = _splits_words(encoder) and not any(map(_reaches_over, added))
        self._bounded = self._cuts and not any(token.lstrip or token.rstrip for token in added)
        self._encoder = encoder

    def most_characters(self, text: str, tokens: int) -> int:
        """Most characters of `text` that one token stands for; exact only for a long text that may have more than
        `tokens` tokens, for it takes a list of the vocabulary.
        """
        if not self._bounded or len(text) < max(tokens, _PIECE) or not is_normalized("NFC", text):
            return _ANY_TOKEN
        longest = max(map(len, self._encoder.get_vocab()))  # in bytes, and a character has one or more
        return min(_ANY_TOKEN, longest)

    def pieces(self, text: str) -> Iterator[str]:
        """The text, cut where it can be; one piece has all that comes after the last cut that was found."""
        start = 0
        while len(text) - start > _PIECE and (cut := self.last(text[start : start + _PIECE])):
            yield text[start : start + cut]
            start += cut
        yield text[start:]

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

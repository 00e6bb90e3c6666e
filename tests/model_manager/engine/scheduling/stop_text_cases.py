"""Tokenizers made on the spot, and what stopping at a string means, by decoding everything after each token."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

REPLACEMENT = "\ufffd"
SPECIAL = "</s>"
_WORDS = ["the", "end", "ab", "é", "好", "x", "\n", REPLACEMENT]
Occurrence = tuple[int, str]
"""Where a stop string begins in the text, and which."""


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """`byte-level`; `metaspace` with byte fallback as Llama 2's; `plain` likewise as Gemma's, which strips nothing."""
    return _byte_level() if kind == "byte-level" else _byte_fallback(strips=kind == "metaspace")


KINDS = ("byte-level", "metaspace", "plain")


def _byte_level() -> Tokenizer:
    """All bytes, words, and tokens that begin or end within a character."""
    marks = _marks()
    vocab = {mark: byte for byte, mark in marks.items()}
    merges: list[tuple[str, str]] = []
    for text in [" the", "end", " end", "éa", "x好", "\U0001f389"]:
        parts = [marks[byte] for byte in text.encode()]
        for size, _ in enumerate(parts[1:], 1):
            merge = "".join(parts[:size]), parts[size]
            merges += [merge] * (merge not in merges)
            vocab.setdefault("".join(merge), len(vocab))
    made = Tokenizer(BPE(vocab, merges))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return made


def _marks() -> dict[int, str]:
    """The character that stands for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(others)}


def _byte_fallback(*, strips: bool) -> Tokenizer:
    words = ["▁", *_WORDS, *(f"▁{word}" for word in _WORDS)]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + at for at, word in enumerate(words)}
    made = Tokenizer(BPE(vocab, [], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strips else parts)
    made.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return made


def shown(made: Tokenizer, ids: list[int]) -> str:
    """The text of tokens, as far as it can count: replacement characters at its end may become a character yet."""
    text: str = made.decode(ids, skip_special_tokens=True)
    return text.rstrip(REPLACEMENT)


def first_stop(made: Tokenizer, ids: list[int], strings: list[str], min_tokens: int) -> tuple[int, set[Occurrence]]:
    """After how many tokens the text stops, and at which occurrences; (0, none) where it goes on.

    An occurrence is a string at a place, which is the number of characters before it. It is complete at a token if it
    stands in the shown text of all tokens up to that one. A token stops the text if at least `min_tokens` tokens are
    there and an occurrence is complete at it that was complete at no token before it. So a later byte may take an
    occurrence away and another byte may bring it back: it was complete before, and does not count again.
    """
    before: set[Occurrence] = set()
    for count in range(1, len(ids) + 1):
        text = shown(made, ids[:count])
        now = {(at, string) for string in strings for at in range(len(text)) if text.startswith(string, at)}
        if count >= min_tokens and now - before:
            return count, now - before
        before |= now
    return 0, set()

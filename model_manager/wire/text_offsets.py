"""Where each token of an answer begins in the answer's text, however much of the text is there yet.

It knows tokens by their ids and own texts, and the tokenizer only as a function from ids to text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from .logprobs import TokenLogprob

PART_OF_CHARACTER = "\ufffd"
_MOST_PARTS = 8
"""Parts that are decoded together; more of them are no character."""
_FARTHEST = 128
"""Characters that are passed over at most to find a token again."""

Decode = Callable[[Sequence[int]], str]
"""The text of token ids; tokens that are not in texts have none."""


class TextOffsets:
    """The tokens of one text, placed one after the other.

    A token that is not in the text is placed where the next one begins; a part of a character where that character
    begins; a token behind the end of the text (of a stop string) at the end. A token is held back while the text that
    decides on its place is not there, so a text that comes in parts has the same offsets as the whole.
    """

    def __init__(self, decode: Decode | None = None, start: int = 0) -> None:
        """`decode`: without one, each of several characters of parts is placed at the first; `start`: the offset of
        the text.
        """
        self._decode = decode
        self._at = start
        self._text = ""
        """The text from there on."""
        self._held: deque[TokenLogprob] = deque()
        self._parts: list[int] = []
        """Tokens since there that end within a character."""
        self._num_whole = 0
        """Characters that they complete."""
        self._num_lost = 0
        """Characters of tokens since there that were not found: their text may be another one."""

    def add(
        self, text: str, tokens: Sequence[TokenLogprob], *, is_last: bool = False
    ) -> tuple[list[TokenLogprob], list[int]]:
        """The tokens that are placed with this text, and their offsets; all others with the last one."""
        self._text += text
        self._held += tokens
        placed: list[TokenLogprob] = []
        offsets: list[int] = []
        while self._held and (offset := self._offset(self._held[0], is_last)) is not None:
            placed.append(self._held.popleft())
            offsets.append(offset)
        return placed, offsets

    def _offset(self, token: TokenLogprob, is_last: bool) -> int | None:
        """The offset of the next token; None while it depends on text to come."""
        if not token.token or (self._decode is not None and not self._decode([token.token_id])):
            return self._at + min(self._num_whole, len(self._text))
        if PART_OF_CHARACTER in token.token:
            return self._of_part(token, is_last)
        self._end_parts()
        return self._of_whole(token.token, is_last)

    def _of_whole(self, token: str, is_last: bool) -> int | None:
        farthest = min(2 * self._num_lost, _FARTHEST) or int(self._text[:1] == " ")  # a token alone may be without it
        for ahead in range(farthest + 1):
            found = self._text[ahead : ahead + len(token)]
            if found != token and not is_last and token.startswith(found):
                return None
            if found and token.startswith(found):
                offset = self._at + ahead
                self._advance(ahead + len(found))
                return offset
        self._num_lost += len(token)
        return self._at

    def _of_part(self, token: TokenLogprob, is_last: bool) -> int | None:
        if self._decode is None:
            self._num_lost += len(token.token)
            return self._at
        if not self._text and not is_last:
            return None
        parts = [*self._parts, token.token_id]
        text = self._decode(parts)
        whole = text.rstrip(PART_OF_CHARACTER)
        is_first = not self._parts and not self._num_lost
        has_space = is_first and self._text[:1] == " " and text[:1] != " "  # of the token before, alone without text
        if len(self._text) - has_space < len(whole) and not is_last:
            return None
        if has_space:
            self._advance(1)
        offset = self._at + min(self._num_whole, len(self._text))
        self._parts, self._num_whole = parts, len(whole)
        if whole == text and self._text.startswith(text):
            self._advance(len(text))
        elif len(parts) == _MOST_PARTS:
            self._end_parts()
        return offset

    def _end_parts(self) -> None:
        """Parts that are no whole character: each of their bytes may be a replacement character of the text."""
        if self._parts:
            lost = self._num_lost + 2 * len(self._parts)
            self._advance(self._num_whole)
            self._num_lost = lost

    def _advance(self, count: int) -> None:
        self._at += min(count, len(self._text))
        self._text = self._text[count:]
        self._parts, self._num_whole, self._num_lost = [], 0, 0


def text_offsets(text: str, tokens: Sequence[TokenLogprob], decode: Decode | None = None, start: int = 0) -> list[int]:
    """The offset of each token of a whole text."""
    return TextOffsets(decode, start).add(text, tokens, is_last=True)[1]

"""Decodes an output while its tokens come, into pieces of text that no later token changes.

It decodes a few tokens at a time, so a token costs the same however long the output is (the prefix-offset method of
text-generation-inference and vLLM). It knows the tokenizer only as a function from token ids to text, and knows no stop
strings.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 4
"""Most bytes of a character, so most tokens that it takes."""


class TextPieces:
    """The pieces of one output. Joined, they are the beginning of the whole output's text.

    A piece waits
      while the text ends in replacement characters: further bytes may make a character of them
      while the last token is one of `byte_ids`: a byte that follows may turn all bytes before it, back to the last
      token of text, into replacement characters
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        has_text: Callable[[int], bool],
        byte_ids: Container[int],
    ) -> None:
        """`decode` makes the text of tokens; `has_text` is False for a token that it leaves out."""
        self._decode = decode
        self._has_text = has_text
        self._byte_ids = byte_ids
        self._ids: list[int] = []  # context, then tokens whose text is not settled
        self._num_context = 0
        self._context_text = ""
        self._follows = True  # the text of each window begins with the text of its context

    def push(self, token_id: int) -> str:
        """The text that is settled with this token; empty while it waits."""
        if not self._has_text(token_id):
            return ""
        self._ids.append(token_id)
        if token_id in self._byte_ids or self._has_long_been_broken() or not self._follows:
            return ""
        text = self._decode(self._ids)
        self._follows = text.startswith(self._context_text)
        if text.endswith(REPLACEMENT) or not self._follows:
            return ""
        piece = text[len(self._context_text) :]
        self._settle()
        return piece

    def _has_long_been_broken(self) -> bool:
        """True if many tokens wait and the last ones end in no whole character: then not all are decoded again."""
        if len(self._ids) - self._num_context <= _LONGEST:
            return False
        return self._decode(self._ids[-_LONGEST:]).endswith(REPLACEMENT)

    def _settle(self) -> None:
        """Keep the new tokens as the next ones' context; more tokens while these alone have no text. A decoder may
        treat the beginning of a text differently: it strips a space there.
        """
        for start in (self._num_context, max(0, self._num_context - 1), 0):
            context = self._ids[start:]
            self._context_text = self._decode(context)
            if self._context_text:
                break
        self._ids, self._num_context = context, len(context)

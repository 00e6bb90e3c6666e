"""Decides after each token whether its sequence has ended.

Knows token ids and, for requests with stop strings, the text of their output. Does not know prompts: a stop string in a
prompt does not count. Does not cut the text: the client does, at the first occurrence of the string named here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from ...grammars.guide import Guide
from ...wire.common_beginning import common_beginning
from ...wire.errors import InvalidRequest, ModelCorrupt
from ...wire.request import FinishReason
from ...wire.sampling import SamplingParams
from ..sampling.token_rules import TokenRules, token_rules

_REPLACEMENT = "\ufffd"
_MOST_PENDING = 16
"""Tokens that may wait for the end of a character; a character has at most four bytes."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ended, and the stop string or stop token id that ended it, if any."""

    reason: FinishReason
    matched: str | int | None = None
    complete: bool = False
    """The output has a constraint, no token stopped it, and its last token is text."""
    is_cut: bool = False
    """The output has a constraint and is not whole."""


class StopText:
    """Watches the decoded output for strings; exact at each token, however strings and characters straddle tokens.

    A token completes an occurrence of a string if the text of all tokens so far has the occurrence, and the text after
    no earlier token had it. Replacement characters at the text's end are left out: later bytes may make a character of
    them. A later byte may also turn finished characters back into replacement characters (byte fallback), and another
    byte may restore them. An occurrence that was complete before is not found again then.

    Only a few tokens are decoded again at each step (the prefix-offset method of text-generation-inference and vLLM).
    tokenizers' own DecodeStream does not serve: with byte fallback, a byte that turns a finished character back into
    replacement characters makes it raise from then on.
    """

    def __init__(self, tokenizer: Tokenizer, strings: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._strings = strings
        self._overlap = max(map(len, strings)) - 1
        self._ids: list[int] = []
        self._prefix = 0  # tokens from here to _settled only give the decoder its context
        self._settled = 0  # text of the tokens before this is known
        self._prefix_text = ""
        self._tail = ""  # the end of the settled text: whatever a string may begin in that is not complete yet
        self._searched = ""  # the text from the tail's beginning on, as far as it was searched
        self._num_searched = 0  # tokens when that was searched

    def push(self, token_id: int) -> str | None:
        """The string that this token completes; the one that begins first if there are several.

        A caller that goes on after one ignores it: only strings that later tokens complete are found.
        """
        self._ids.append(token_id)
        text = self._decode(self._prefix)
        if not text.startswith(self._prefix_text):
            if self._within_character(text) and self._prefix_text.startswith(text.rstrip(_REPLACEMENT)):
                return None  # the text became shorter
            self._restart()
            text = self._decode(0)
        fresh = text[len(self._prefix_text) :]
        matched = self._find(fresh)
        self._settle(text, fresh)
        return matched

    def last(self, count: int) -> list[int]:
        """The last tokens."""
        return self._ids[-count:]

    def _find(self, fresh: str) -> str | None:
        """The first string that ends in text that was not searched before."""
        text = (self._tail + fresh).rstrip(_REPLACEMENT)
        known = common_beginning(self._searched, text)
        if known == len(text):
            return None  # what was searched may be longer: it is kept, as it may come back
        self._searched, self._num_searched = text, len(self._ids)
        places = [(text.find(string, max(0, known - len(string) + 1)), string) for string in self._strings]
        found = [(at, string) for at, string in places if at >= 0]
        return min(found, key=lambda match: match[0])[1] if found else None

    def _settle(self, decoded: str, fresh: str) -> None:
        """Settle the new text, unless it ends within a character."""
        if not fresh or self._within_character(fresh):
            return
        text = self._tail + fresh
        cut = max(0, common_beginning(self._searched, text) - self._overlap)
        self._tail, self._searched = text[cut:], self._searched[cut:]
        self._prefix_text = self._decode(self._settled)
        if decoded.endswith(self._prefix_text):
            self._prefix = self._settled
        else:  # these tokens alone would be other text: they are among bytes that are no characters
            self._prefix_text = decoded
        self._settled = len(self._ids)

    def _within_character(self, text: str) -> bool:
        return text.endswith(_REPLACEMENT) and len(self._ids) - self._settled < _MOST_PENDING

    def _restart(self) -> None:
        """Forget the settled text but not the searched text: a later byte has changed the text of earlier tokens."""
        self._searched = self._text(self._ids[: self._num_searched]).rstrip(_REPLACEMENT)
        self._prefix = self._settled = 0
        self._prefix_text = self._tail = ""

    def _decode(self, start: int) -> str:
        return self._text(self._ids[start:])

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


class StopConditions:
    """Everything that can end one sequence."""

    def __init__(
        self, params: SamplingParams, max_tokens: int, eos: Collection[int], tokenizer: Tokenizer | None
    ) -> None:
        """`max_tokens` is the request's, cut to the positions left.

        Raises InvalidRequest for stop strings without a tokenizer.
        """
        self.max_tokens = max_tokens
        self._min_tokens = params.min_tokens
        self.eos = eos
        """The model's end-of-sequence ids, also if they are ignored."""
        self._eos = () if params.ignore_eos else eos
        self.stop_tokens = frozenset(params.stop_token_ids)
        self._included = params.include_stop_str_in_output
        self._text: StopText | None = None
        if params.stop:
            if tokenizer is None:
                raise InvalidRequest("stop: takes strings only for a model whose folder has a tokenizer.json")
            self._text = StopText(tokenizer, params.stop)

    def after(self, token_id: int, num_output_tokens: int, guide: Guide | None = None) -> Ending | None:
        """The ending that this token causes; call once for each token, in order.

        With a guide, which has taken the token, nothing ends the output where its grammar does not allow the end.
        """
        stopped = self._stopped(token_id, guide)
        if stopped is not None and num_output_tokens >= self._min_tokens:
            return stopped
        if guide is not None and guide.is_over:
            return Ending(FinishReason.STOP, complete=True)
        if num_output_tokens < self.max_tokens:
            return None
        if guide is None:
            return Ending(FinishReason.LENGTH)
        return Ending(FinishReason.LENGTH, complete=True, is_cut=not guide.may_end)

    def _stopped(self, token_id: int, guide: Guide | None) -> Ending | None:
        if guide is None or guide.has_ended:
            if token_id in self._eos:
                return Ending(FinishReason.STOP)
            if token_id in self.stop_tokens:
                return Ending(FinishReason.STOP, token_id)
        string = None if self._text is None else self._text.push(token_id)
        if self._text is None or string is None:
            return None
        last = self._text.last(len(string.encode()) + 1)
        ends = guide is None or guide.may_end_at(string, last, included=self._included)
        return Ending(FinishReason.STOP, string) if ends else None


@dataclass(frozen=True)
class StopRules:
    """A model's part of stopping and of rules about strings: its end-of-sequence tokens and its tokenizer."""

    eos_token_ids: frozenset[int]
    tokenizer: Tokenizer | None

    @classmethod
    def load(cls, folder: Path, eos_token_ids: Collection[int]) -> Self:
        """Stop rules with the folder's tokenizer.json, if it has one. Raises ModelCorrupt if that cannot be read."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            return cls(frozenset(eos_token_ids), None)
        try:
            return cls(frozenset(eos_token_ids), Tokenizer.from_file(str(path)))
        except Exception as error:  # tokenizers raises no narrower class
            raise ModelCorrupt(f"{path}: is not a tokenizer: {error}") from None

    def conditions(self, params: SamplingParams, max_tokens: int) -> StopConditions:
        """The conditions of one request; raises InvalidRequest as StopConditions does."""
        return StopConditions(params, max_tokens, self.eos_token_ids, self.tokenizer)

    def token_rules(self, params: SamplingParams, vocab_size: int) -> TokenRules | None:
        """The rules of one request, None where it has none; raises InvalidRequest as sampling/token_rules.py says."""
        return token_rules(params, self.eos_token_ids, vocab_size, self.tokenizer)

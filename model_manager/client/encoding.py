"""Makes the prompt fields of a request of a caller's prompt, checked against the loaded model. Knows no manager.

Most engines take token ids, which are made here; an engine with its own tokenizer takes text or messages as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Required, TypedDict

from ..wire.common_beginning import common_beginning
from ..wire.errors import InvalidRequest, PromptTooLong, counted
from ..wire.status import ModelInfo
from .generation import Decoder

ChatMessage = Mapping[str, Any]
PromptContent = str | Sequence[ChatMessage] | Sequence[int]


class TokenIds(list[int]):
    """Token ids of a prompt that were checked against the loaded model; to encode them again skips this check."""


class PromptFields(TypedDict, total=False):
    """The fields of a Request that hold its prompt."""

    prompt_token_ids: Required[list[int]]
    text: str
    messages: list[dict[str, Any]]


class PromptEncoder(Decoder, Protocol):
    """What the client needs of a tokenizer."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model defines how a conversation becomes text."""

    @property
    def first_token_id(self) -> int | None:
        """The token that may stand before a text that has nothing before it."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of text."""

    def cut(self, text: str) -> int:
        """After how many characters a text may be cut: whatever comes after it, the tokens stay the same."""

    def most_characters(self, text: str, tokens: int) -> int:
        """Most characters that one token of the text stands for; rough unless the text may have more than `tokens`."""

    def chat_text(self, messages: Sequence[ChatMessage]) -> str:
        """The text of a conversation that asks for the next answer, special tokens and all."""


class Encoding:
    """Prompts and continuations as token ids of one model."""

    def __init__(self, tokenizer: PromptEncoder, chat: bool | None, max_model_len: int | None = None) -> None:
        """`chat`: whether plain text is one user turn of a conversation; None is if the model has a template.

        `max_model_len`: the setting, for errors to name where it is what limits.
        """
        self._tokenizer = tokenizer
        self._setting = max_model_len
        self._chat = tokenizer.has_chat_template if chat is None else chat

    def fields(self, prompt: PromptContent, info: ModelInfo, *, room: int = 0) -> PromptFields:
        """The fields of a request, and the errors, of `prompt`."""
        return {"prompt_token_ids": self.prompt(prompt, info, room=room)}

    def prompt(self, prompt: PromptContent, info: ModelInfo, *, room: int = 0) -> list[int]:
        """Token ids of text, chat messages or token ids, which leave `room` positions.

        Raises InvalidRequest or PromptTooLong.
        """
        ids = prompt if isinstance(prompt, TokenIds) else TokenIds(self._encoded(self._text(prompt), prompt, info))
        _check_length(ids, info, room, self._setting)
        return ids

    def context(self, prompt: PromptContent, info: ModelInfo) -> Context:
        """A prompt whose continuations are scored, tokenized once; raises InvalidRequest."""
        text = self._text(prompt)
        return Context(self._tokenizer, text, self._encoded(text, prompt, info), info, self._setting)

    def _encoded(self, text: tuple[str, bool] | None, prompt: PromptContent, info: ModelInfo) -> list[int]:
        if text is not None:
            check_size(self._tokenizer, text[0], info)
            ids = self._tokenizer.encode(text[0], add_special_tokens=text[1])
        else:
            ids = _checked_ids([part for part in prompt if isinstance(part, int)], info)
        if not ids:
            raise InvalidRequest("the prompt is empty")
        return ids

    def _text(self, prompt: PromptContent) -> tuple[str, bool] | None:
        """A prompt's text, and whether the tokenizer is to add special tokens; None if it is token ids."""
        if isinstance(prompt, str):
            if not self._chat:
                return prompt, True
            prompt = [{"role": "user", "content": prompt}]
        messages = [part for part in prompt if not isinstance(part, int)]
        return (self._tokenizer.chat_text(messages), False) if messages else None


class TextPrompts:
    """Prompts for an engine with its own tokenizer: text or messages."""

    def __init__(self, backend: str, chat: bool | None) -> None:
        """`chat`: whether plain text is one user turn of a conversation; None is as the engine says."""
        self._backend = backend
        self._chat = chat

    def fields(self, prompt: PromptContent, info: ModelInfo, **_: int) -> PromptFields:
        """The fields of a request; raises InvalidRequest for token ids. How long it may be only the engine knows."""
        if not prompt:
            raise InvalidRequest("the prompt is empty")
        if isinstance(prompt, str):
            if not (info.chat if self._chat is None else self._chat):
                return {"prompt_token_ids": [], "text": prompt}
            prompt = [{"role": "user", "content": prompt}]
        messages = [dict(part) for part in prompt if isinstance(part, Mapping)]
        if len(messages) != len(prompt):
            raise InvalidRequest(f"token_ids: the back end {self._backend} takes text or messages")
        return {"prompt_token_ids": [], "messages": messages}

    def context(self, _prompt: PromptContent, _info: ModelInfo) -> Context:
        """Raises InvalidRequest: scores are asked about tokens."""
        raise InvalidRequest(f"score: the back end {self._backend} takes text, and scores need token ids")


class Context:
    """A prompt as tokens, which continuations are added to."""

    def __init__(
        self,
        tokenizer: PromptEncoder,
        text: tuple[str, bool] | None,
        ids: list[int],
        info: ModelInfo,
        max_model_len: int | None,
    ) -> None:
        """`text` is the prompt's and whether special tokens are added to it, None for a prompt of token ids."""
        self._tokenizer = tokenizer
        self._info = info
        self._setting = max_model_len
        self._ids = ids
        self._settled = 0
        self._open = text
        if text is not None:
            self._settle(text[0])

    def continued(self, continuation: str | Sequence[int]) -> tuple[list[int], int]:
        """Token ids of the prompt and its continuation, and the index of the first that is scored.

        Both as text are tokenized as one text, as the model would see it, and what is scored begins with the first
        token that the context alone does not begin with. So a token that spans the boundary (" the" of "on " and "the")
        is scored as a whole, and nothing of the continuation goes unscored. lm-evaluation-harness, which moves spaces
        over the boundary and then counts the context's tokens, gives the same wherever no token spans it.
        A continuation that is, or comes to, token ids is appended to the context's.

        Raises InvalidRequest or PromptTooLong.
        """
        if isinstance(continuation, str) and self._open is not None:
            text, special = self._open
            ids = self._ids[: self._settled] + self._tokenizer.encode(text + continuation, add_special_tokens=special)
        elif isinstance(continuation, str):
            ids = self._ids + self._tokenizer.encode(continuation, add_special_tokens=False)
        else:
            ids = self._ids + _checked_ids([*continuation], self._info)
        first = self._settled + common_beginning(self._ids[self._settled :], ids[self._settled :])
        if first == len(ids):
            raise InvalidRequest("the continuation is empty: it adds no token to its context")
        if first == 0:
            ids, first = self._with_first(ids), 1
        _check_length(ids, self._info, 0, self._setting)
        return ids, first

    def _settle(self, text: str) -> None:
        """Find the tokens that no continuation can change: those before a cut. Only the text after the cut is tokenized
        again with each continuation.
        """
        cut = self._tokenizer.cut(text)
        last = self._tokenizer.encode(text[cut:], add_special_tokens=False) if cut else []
        if last and self._ids[-len(last) :] == last:  # else a token stands behind each text
            self._settled, self._open = len(self._ids) - len(last), (text[cut:], False)

    def _with_first(self, ids: list[int]) -> list[int]:
        first = self._tokenizer.first_token_id
        if first is None:
            raise InvalidRequest("the first token has nothing before it, and the model has no token that begins a text")
        return [first, *ids]


def check_size(tokenizer: PromptEncoder, text: str, info: ModelInfo) -> None:
    """Refuse a text that is too long whatever its tokens are: to tokenize megabytes takes seconds and gigabytes. Raises
    PromptTooLong.
    """
    if len(text) <= info.max_model_len:
        return
    most = tokenizer.most_characters(text, info.max_model_len)
    if len(text) > most * info.max_model_len:
        has = f"the prompt has {counted(len(text), 'character')}, {info.name} has {info.max_model_len} positions"
        raise PromptTooLong(f"{has}, of at most {most} characters each")


def _checked_ids(ids: list[int], info: ModelInfo) -> list[int]:
    unknown = next((token for token in ids if not 0 <= token < info.vocab_size), None)
    if unknown is not None:
        raise InvalidRequest(f"prompt token {unknown}: takes ids of 0 to {info.vocab_size - 1}")
    return ids


def _check_length(ids: list[int], info: ModelInfo, room: int, setting: int | None) -> None:
    if len(ids) + room > info.max_model_len:
        more = f", and {'one is' if room == 1 else f'{room} are'} for the output" if room else ""
        limits = f"max_model_len={setting} leaves {info.name} {setting}" if setting == info.max_model_len else ""
        has = limits or f"{info.name} has {info.max_model_len}"
        raise PromptTooLong(f"the prompt has {counted(len(ids), 'token')}, {has} positions{more}")

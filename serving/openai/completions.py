"""`/v1/completions`: prompts as they are, without a chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.encoding import PromptContent
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.logprobs import TokenLogprob
from millrace.model_manager.wire.openai_answers import choice, reason_word, text_logprobs
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.text_offsets import Decode, TextOffsets, text_offsets

from ..requests.exchanges import End
from ..requests.service import Service
from .answers import RouteAnswer, prompt_logprobs, question
from .bodies import CompletionBody, ignored, read
from .parameters import sampling
from .prompts import prompts_of

MAX_TOKENS = 16
"""OpenAI's default."""


def completion(fields: Mapping[str, Any], service: Service) -> RouteAnswer:
    """What a body asks. Raises InvalidRequest, PromptTooLong, HttpError, or EngineError while no model is loaded."""
    body = read(fields, CompletionBody)
    adapter = service.adapter_of(body.model)
    client = service.engine.client
    is_echo_alone = body.echo and not body.stream and fields.get("max_tokens") == 0
    given, most = {**fields, "max_tokens": 1} if is_echo_alone else fields, service.settings.max_tokens
    params = sampling(given, MAX_TOKENS, adapter, most=most)
    if body.best_of not in (None, params.n):
        raise InvalidRequest(f"best_of={body.best_of}: takes the value of n, {params.n}")
    asked = prompts_of("prompt", body.prompt)
    prompts = [client.encoded(prompt) for prompt in asked]
    texts = [each if isinstance(each, str) else client.tokenizer.decode(each) for each in asked] if body.echo else []
    echoed = [*map(Echo, texts, prompts)] if body.echo else []
    shown = params.logprobs if body.echo else None
    if shown is not None:
        params = msgspec.structs.replace(params, prompt_logprobs=shown)
    takes_tokens = BACKENDS[service.served.backend].takes == "tokens"
    return CompletionAnswer(
        body,
        body.model or service.served.model,
        [question(prompt, params) for prompt in prompts],
        ignored(fields, CompletionBody),
        params,
        echoed,
        client.tokenizer if params.logprobs is not None and takes_tokens else None,
        is_echo_alone,
    )


@dataclass(frozen=True)
class Echo:
    """A prompt as it stands before its answers."""

    text: str
    prompt: PromptContent
    """The same as it is asked: token ids, or text where a job or the engine makes token ids of it."""

    def first(self, tokenizer: Tokenizer) -> TokenLogprob:
        """Its first token, of no log-probability: nothing is before it."""
        ids = tokenizer.encode(self.prompt) if isinstance(self.prompt, str) else self.prompt
        first = ids[0]
        assert isinstance(first, int), "a completion has no messages"
        return TokenLogprob(tokenizer.decode([first], skip_special_tokens=False), first, 0.0, [])


class CompletionAnswer(RouteAnswer):
    """A text completion."""

    prefix, whole_kind, part_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, *given: Any) -> None:
        """`given`: RouteAnswer's arguments, then the parameters, the prompts if they are to be echoed, the tokenizer if
        log-probabilities are asked for and the engine takes tokens, and whether the echo is all that is asked for
        (`max_tokens` of 0).
        """
        *common, params, echoed, tokenizer, is_echo_alone = given
        super().__init__(*common)
        self._params: SamplingParams = params
        self._echoed: list[Echo] = echoed
        self._tokenizer: Tokenizer | None = tokenizer
        self._decode: Decode | None = None if self._tokenizer is None else self._tokenizer.decode
        self._is_echo_alone: bool = is_echo_alone
        self._prompts: dict[int, list[TokenLogprob]] = {}
        """The tokens of each echoed prompt. The first answer of the prompt brings them."""
        self._offsets: dict[int, TextOffsets] = {}
        """Where the next tokens of each streamed choice are, once the choice has begun."""

    def whole(self, ends: Sequence[End]) -> dict[str, Any]:
        """See RouteAnswer."""
        return super().whole([End(end.index, _unanswered(end.output)) for end in ends] if self._is_echo_alone else ends)

    def choice(self, index: int, output: Output) -> dict[str, Any]:
        """See RouteAnswer."""
        made = choice(index, self._echo(index) + output.text, output.finish_reason, None, is_chat=False)
        asked = {} if self._echoed else prompt_logprobs(output)
        return {**made, "logprobs": self._logprobs(index, output), "stop_reason": output.stop_reason, **asked}

    def of_delta(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """See RouteAnswer. The log-probabilities of a prompt come with its whole answer, so nothing is before them."""
        if self._waits_for_prompt:
            return
        echo = "" if index in self._offsets else self._echo(index)
        offsets = self._offsets.setdefault(index, TextOffsets(self._decode))
        logprobs = None
        if self._params.logprobs is not None:  # else no token needs the text to be kept
            tokens = [] if delta.logprobs is None else delta.logprobs.tokens
            logprobs = _logprobs(*offsets.add(delta.text, tokens))
        yield _part(index, echo + delta.text, logprobs)

    def of_end(self, index: int, output: Output) -> Iterator[dict[str, Any]]:
        """See RouteAnswer."""
        if self._waits_for_prompt:
            yield self.choice(index, output)
            return
        echo = "" if index in self._offsets else self._echo(index)
        rest = self._offsets.setdefault(index, TextOffsets(self._decode)).add("", [], is_last=True)
        last = _part(index, echo, _logprobs(*rest))
        yield {**last, "finish_reason": reason_word(output.finish_reason), "stop_reason": output.stop_reason}

    @property
    def _waits_for_prompt(self) -> bool:
        return bool(self._echoed) and self._params.logprobs is not None

    def _logprobs(self, index: int, output: Output) -> dict[str, Any] | None:
        """Log-probabilities of a whole choice, and of its prompt before it, if it is echoed."""
        if output.logprobs is None:
            return None
        echo, tokens = self._echo(index), output.logprobs.tokens
        found = text_logprobs(tokens, text_offsets(output.text, tokens, self._decode, len(echo)))
        prompt = index // self._params.n
        before = self._of_prompt(prompt, output) if self._echoed else None
        return _joined(before, found) if before and found else found

    def _of_prompt(self, prompt: int, output: Output) -> dict[str, Any] | None:
        """Log-probabilities of an echoed prompt, whose special tokens may be in its text; `output`: one of its own."""
        if self._tokenizer is None:
            return None
        echo = self._echoed[prompt]
        if output.prompt_logprobs is not None:
            self._prompts[prompt] = [echo.first(self._tokenizer), *output.prompt_logprobs.tokens]
        if (tokens := self._prompts.get(prompt)) is None:
            return None
        decode = partial(self._tokenizer.decode, skip_special_tokens=False)
        found = text_logprobs(tokens, text_offsets(echo.text, tokens, decode))
        return found and found | {name: [None, *found[name][1:]] for name in ("token_logprobs", "top_logprobs")}

    def _echo(self, index: int) -> str:
        return self._echoed[index // self._params.n].text if self._echoed else ""


def _unanswered(output: Output) -> Output:
    """The output without the one token that was generated because an engine generates one at least."""
    return msgspec.structs.replace(
        output,
        text="",
        token_ids=[],
        num_tokens=None,
        finish_reason=FinishReason.LENGTH,
        logprobs=None if output.logprobs is None else output.logprobs.part(0, 0),
        choices=tuple(map(_unanswered, output.choices)),
    )


def _part(index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}


def _logprobs(tokens: list[TokenLogprob], offsets: list[int]) -> dict[str, Any] | None:
    return text_logprobs(tokens or None, offsets)


def _joined(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities of two texts that stand one after the other."""
    return {name: before[name] + found[name] for name in found}

"""`/v1/completions`: prompts as they are, without a chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.logprobs import TokenLogprob
from millrace.model_manager.wire.openai_answers import choice, logprobs_of, num_characters, reason_word
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams

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
    echoed = [_text(prompt, client) for prompt in asked] if body.echo else []
    shown = params.logprobs if body.echo else None
    if shown is not None:
        params = msgspec.structs.replace(params, prompt_logprobs=shown)
    return CompletionAnswer(
        body,
        body.model or service.served.model,
        [question(prompt, params) for prompt in prompts],
        ignored(fields, CompletionBody),
        params,
        echoed,
        is_echo_alone,
    )


def _text(prompt: str | list[int], client: EngineClient) -> str:
    return prompt if isinstance(prompt, str) else client.tokenizer.decode(prompt)


class CompletionAnswer(RouteAnswer):
    """A text completion."""

    prefix, whole_kind, part_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, *given: Any) -> None:
        """`given`: RouteAnswer's arguments, then the parameters, the prompts' texts if they are to be echoed, and
        whether the echo is all that is asked for (`max_tokens` of 0).
        """
        *common, params, echoed, is_echo_alone = given
        super().__init__(*common)
        self._params: SamplingParams = params
        self._echoed: list[str] = echoed
        self._is_echo_alone: bool = is_echo_alone
        self._offsets: dict[int, int] = {}
        """Of each choice that has begun, how many characters are before its next token."""

    def whole(self, ends: Sequence[End]) -> dict[str, Any]:
        """See RouteAnswer."""
        return super().whole([End(end.index, _unanswered(end.output)) for end in ends] if self._is_echo_alone else ends)

    def choice(self, index: int, output: Output) -> dict[str, Any]:
        """See RouteAnswer."""
        tokens = None if output.logprobs is None else output.logprobs.tokens
        made = choice(index, self._echo(index) + output.text, output.finish_reason, tokens, is_chat=False)
        if self._echoed and tokens is not None and output.prompt_logprobs is not None:
            made["logprobs"] = _with_prompt(output.prompt_logprobs.tokens, tokens, made["text"])
        asked = {} if self._echoed else prompt_logprobs(output)
        return {**made, "stop_reason": output.stop_reason, **asked}

    def of_delta(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """See RouteAnswer."""
        echo = "" if index in self._offsets else self._echo(index)
        offset = self._offsets.get(index, len(echo))
        tokens = None if delta.logprobs is None else delta.logprobs.tokens
        self._offsets[index] = offset + num_characters(tokens or [])
        yield _part(index, echo + delta.text, logprobs_of(tokens, is_chat=False, offset=offset))

    def of_end(self, index: int, output: Output) -> Iterator[dict[str, Any]]:
        """See RouteAnswer."""
        echo = "" if index in self._offsets else self._echo(index)
        last = _part(index, echo, None)
        yield {**last, "finish_reason": reason_word(output.finish_reason), "stop_reason": output.stop_reason}

    def _echo(self, index: int) -> str:
        return self._echoed[index // self._params.n] if self._echoed else ""


def _unanswered(output: Output) -> Output:
    """The output without the one token that was generated because an engine generates one at least."""
    return msgspec.structs.replace(
        output,
        text="",
        token_ids=[],
        num_tokens=None,
        finish_reason=FinishReason.LENGTH,
        logprobs=output.logprobs and output.logprobs.part(0, 0),
        choices=tuple(map(_unanswered, output.choices)),
    )


def _part(index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}


def _with_prompt(prompt: list[TokenLogprob], tokens: list[TokenLogprob], text: str) -> dict[str, Any]:
    """Log-probabilities of the prompt and its answer; nothing is before the first token, so it has none."""
    first = text[: max(0, len(text) - num_characters([*prompt, *tokens]))]
    found = logprobs_of([*prompt, *tokens], is_chat=False, offset=len(first))
    assert found is not None, "there are tokens"
    return {
        "tokens": [first, *found["tokens"]],
        "token_logprobs": [None, *found["token_logprobs"]],
        "top_logprobs": [None, *found["top_logprobs"]],
        "text_offset": [0, *found["text_offset"]],
    }

"""The seam between routes that generate and their forms: what a body asks; its answer, whole or in parts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.encoding import PromptContent
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.openai_answers import usage
from millrace.model_manager.wire.request import Adapter, Output
from millrace.model_manager.wire.sampling import SamplingParams

from ..requests.exchanges import AnswerPart, End, Question
from ..requests.ids import new_id
from .bodies import GenerationBody, StreamOptions


def question(prompt: PromptContent, params: SamplingParams) -> Question:
    """A prompt to be completed. What `max_tokens` cuts is an answer, with the text so far, as OpenAI has it."""

    def ask(client: EngineClient, request_id: str, on_delta: Any, adapter: Adapter | None, may_wait: bool) -> Any:
        more = {"on_delta": on_delta, "may_be_cut": True, "adapter": adapter, "may_wait": may_wait}
        return client.submit(prompt, params, request_id=request_id, **more)

    is_counted = isinstance(prompt, list) and isinstance(prompt[0], int)
    prompt_tokens = len(prompt) if is_counted else 0
    return Question(ask, params.priority, params.n, params.constraint, prompt_tokens, params.adapter)


class RouteAnswer(ABC):
    """One request's answer, in the form of its route."""

    prefix = ""
    """How its id begins."""
    whole_kind = ""
    """`object` of a whole answer."""
    part_kind = ""
    """`object` of a part of one."""

    def __init__(self, body: GenerationBody, model: str, questions: list[Question], ignored: dict[str, str]) -> None:
        """`ignored`: the header that names fields without effect."""
        self.questions = questions
        self.is_stream = body.stream
        self.ignored = ignored
        options = body.stream_options or StreamOptions()
        self._gives_usage, self._counts_on = bool(options.include_usage), bool(options.continuous_usage_stats)
        self._generated = 0
        self._common = {"id": new_id(f"{self.prefix}-"), "created": int(time.time()), "model": model}

    def whole(self, ends: Sequence[End]) -> dict[str, Any]:
        """The whole answer."""
        choices = [self.choice(end.index + at, output) for end in ends for at, output in enumerate(end.choices)]
        return {**self._common, "object": self.whole_kind, "choices": choices, "usage": usage_of(ends)}

    def parts(self, event: AnswerPart | End) -> Iterator[dict[str, Any]]:
        """What a stream gives for an event."""
        if isinstance(event, AnswerPart):
            choices = self.of_delta(event.index, event.delta)
        else:
            choices = (
                part for at, output in enumerate(event.choices) for part in self.of_end(event.index + at, output)
            )
        if isinstance(event, AnswerPart):
            self._generated += len(event.delta.token_ids)
        more = {"usage": self._usage_so_far()} if self._gives_usage or self._counts_on else {}
        return ({**self._common, "object": self.part_kind, "choices": [each], **more} for each in choices)

    def _usage_so_far(self) -> dict[str, Any] | None:
        """The usage in a part of a stream, if each is to have one."""
        if not self._counts_on:
            return None
        return usage(sum(each.prompt_tokens for each in self.questions), self._generated, 0)

    def last_parts(self, ends: Sequence[End]) -> list[dict[str, Any]]:
        """What a stream ends with: the usage, if it was asked for."""
        if not self._gives_usage:
            return []
        return [{**self._common, "object": self.part_kind, "choices": [], "usage": usage_of(ends)}]

    @abstractmethod
    def choice(self, index: int, output: Output) -> dict[str, Any]:
        """A whole choice."""

    @abstractmethod
    def of_delta(self, index: int, delta: Delta) -> Iterable[dict[str, Any]]:
        """Choices of a stream for a part of choice `index`."""

    @abstractmethod
    def of_end(self, index: int, output: Output) -> Iterable[dict[str, Any]]:
        """Choices of a stream for the end of choice `index`."""


def usage_of(ends: Sequence[End]) -> dict[str, Any]:
    """What all questions took: a prompt counts once, however many answers it has."""
    generated = sum(output.num_generated for end in ends for output in end.choices)
    return usage(
        sum(end.output.prompt_tokens for end in ends), generated, sum(end.output.cached_tokens for end in ends)
    )


def prompt_logprobs(output: Output) -> dict[str, Any]:
    """VLLM's `prompt_logprobs` of a choice; empty where they were not asked for."""
    if output.prompt_logprobs is None:
        return {}
    tokens = output.prompt_logprobs.tokens
    return {
        "prompt_logprobs": [
            None,
            *(
                {
                    str(each.token_id): {"logprob": each.logprob, "decoded_token": each.token}
                    for each in (*token.top_logprobs, token)
                }
                for token in tokens
            ),
        ]
    }

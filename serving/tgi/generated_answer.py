"""An answer in TGI's form: whole, or a token an event."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from millrace.model_manager.client.encoding import PromptContent
from millrace.model_manager.wire.logprobs import TokenLogprob, TopLogprob
from millrace.model_manager.wire.request import FinishReason, Output

from ..openai.answers import question
from ..requests.exchanges import AnswerPart, End, Question
from .generate_body import GenerateBody, GenerateParameters, sampling

_REASONS = {FinishReason.STOP: "eos_token"}


class GeneratedAnswer:
    """One answer; also a StreamedAnswers of endpoints.py."""

    def __init__(
        self,
        body: GenerateBody,
        prompt: PromptContent,
        first: dict[str, Any] | None,
        special: Collection[int],
        adapter: str = "",
        *,
        is_stream: bool,
        most: int | None = None,
    ) -> None:
        """`first`: the prompt's first token as its details show it, if they are asked for. `special`: tokens that end
        an answer, and are no part of its text. `adapter`: a path, or empty. `most`: tokens that the server allows.
        """
        self.questions: list[Question] = [
            question(prompt, sampling(body.parameters, adapter, is_stream=is_stream, most=most))
        ]
        self.ignored: dict[str, str] = {}
        self.is_stream = is_stream
        self.as_list = False
        """The base address gives a list."""
        self._parameters: GenerateParameters = body.parameters
        self._before = body.inputs if body.parameters.return_full_text else ""
        self._first = first
        self._special = special
        self._held: dict[str, Any] | None = None
        self._number = 0

    def whole(self, ends: Sequence[End]) -> Any:
        """The whole answer: the likeliest one, where it is to be the best of several."""
        choices = sorted(ends[0].choices, key=_likelihood, reverse=True)
        best, others = choices[0], choices[1:]
        made: dict[str, Any] = {"generated_text": self._before + best.text}
        if self._parameters.details or self._parameters.decoder_input_details:
            made["details"] = self._details(best, ends[0].output)
            if others:
                made["details"]["best_of_sequences"] = [
                    {"generated_text": self._before + each.text, **self._details(each, ends[0].output)}
                    for each in others
                ]
        return [made] if self.as_list else made

    def parts(self, event: AnswerPart | End) -> Iterator[dict[str, Any]]:
        """An event for each token. The last one waits for the end, which it tells."""
        if isinstance(event, AnswerPart):
            tokens = event.delta.logprobs.tokens if event.delta.logprobs is not None else []
            for token, text in self._texts(tokens, event.delta.text):
                if self._held is not None:
                    yield self._held
                self._held = self._event(token, text)
            return
        output = event.output
        held = self._held or self._event(None, output.text)
        details = {**_ending(output), "input_length": output.prompt_tokens}
        yield {
            **held,
            "generated_text": self._before + output.text,
            "details": {**details, "seed": self._parameters.seed},
        }

    def last_parts(self, ends: Sequence[End]) -> list[dict[str, Any]]:  # noqa: ARG002 (of StreamedAnswers)
        """Nothing more."""
        return []

    def _event(self, token: TokenLogprob | None, text: str) -> dict[str, Any]:
        """`token`: None from an engine that gives text alone."""
        self._number += 1
        shown = {"id": -1, "logprob": 0.0, "special": False} if token is None else self._token(token)
        top = {"top_tokens": self._top(token)} if token and self._parameters.top_n_tokens else {}
        return {
            "index": self._number,
            "token": {**shown, "text": text},
            **top,
            "generated_text": None,
            "details": None,
        }

    def _details(self, output: Output, first: Output) -> dict[str, Any]:
        tokens = output.logprobs.tokens if output.logprobs is not None else []
        top = {"top_tokens": [self._top(each) for each in tokens]}
        return {
            **_ending(output),
            "seed": self._parameters.seed,
            "prefill": self._prefill(first),
            "tokens": [self._token(each) for each in tokens],
            **(top if self._parameters.top_n_tokens else {}),
        }

    def _prefill(self, output: Output) -> list[dict[str, Any]]:
        if output.prompt_logprobs is None:
            return []
        rest = [
            {"id": each.token_id, "text": each.token, "logprob": each.logprob} for each in output.prompt_logprobs.tokens
        ]
        return [self._first, *rest] if self._first is not None else rest

    def _texts(self, tokens: Sequence[TokenLogprob], text: str) -> Iterator[tuple[TokenLogprob | None, str]]:
        """Each token with its part of the text; where parts of characters make it up, the last one has it all."""
        if not tokens:
            yield None, text
            return
        parts = ["" if each.token_id in self._special else each.token for each in tokens]
        if "".join(parts) != text:
            parts = [*[""] * (len(tokens) - 1), text]
        yield from zip(tokens, parts, strict=True)

    def _top(self, token: TokenLogprob) -> list[dict[str, Any]]:
        return [self._token(each) for each in token.top_logprobs]

    def _token(self, token: TopLogprob) -> dict[str, Any]:
        shown = {"id": token.token_id, "text": token.token, "logprob": token.logprob}
        return {**shown, "special": token.token_id in self._special}


def _ending(output: Output) -> dict[str, Any]:
    reason = "stop_sequence" if isinstance(output.stop_reason, str) else _REASONS.get(output.finish_reason, "length")
    return {"finish_reason": reason, "generated_tokens": output.num_generated}


def _likelihood(output: Output) -> float:
    return sum(output.logprobs.logprobs) if output.logprobs is not None else 0.0

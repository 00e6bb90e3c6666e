"""Score: how likely a model finds given continuations of prompts.

scored = rows | Score("org/model")  # rows such as {"prompt": "2 + 2 =", "continuations": [" 4", " 5"]}
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Unpack

import msgspec

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.decoding import convert
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import Output, RequestTask
from millrace.model_manager.wire.sampling import SamplingParams

from .elements.completions import Prompt
from .elements.prompt_rows import RowShape
from .elements.prompt_template import with_system
from .elements.task_results import ContinuationScore, Scored, spent
from .models.client import Client
from .requests.model_transform import ModelSettings, ModelTransform, chat_with


class Score(ModelTransform):
    """A Scored for each prompt: the log-probabilities of its continuations; otherwise as Generate.

    A row, or a Prompt, has its continuations in a column: a string, or a list of strings or of lists of token ids.
    They share what they begin with through the prefix cache. Which tokens are scored where a token would span the
    boundary, docs/how-to/score-and-embed.md says. Sampling parameters do not matter, but for priority, deadline,
    cache_salt and adapter.
    """

    def __init__(
        self,
        model: str | ModelConfig,
        params: SamplingParams | None = None,
        *,
        template: str | None = None,
        system: str | None = None,
        continuations_column: str = "continuations",
        **settings: Unpack[ModelSettings],
    ) -> None:
        """`template`: Make each prompt from the row's columns: 'Summarize: {text}'. A row that lacks a column is a dead
        letter.

        `system`: System message of each chat, unless the row's messages have one. Needs a model with a chat template.

        `continuations_column`: Column of continuations: a string, or a list of strings or of lists of token ids. With
        a chat template they are what the assistant would answer.

        `settings`: as millrace.transforms.requests.model_transform.ModelSettings explains them.
        """
        task = _Scoring(continuations_column, template, system)
        super().__init__(task, model, params, chat_with(system, settings))


class _Scoring:
    result = Scored
    name = "score"
    request: RequestTask = "score"

    def __init__(self, column: str, template: str | None, system: str | None) -> None:
        self.rows = RowShape(template=template)
        self._column = column
        self._system = system

    def id_parts(self, prompt: Prompt) -> tuple[Any, ...]:
        system = () if self._system is None else (with_system(prompt, self._system),)
        return "score", self._continuations(prompt), *system

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        return client.score(
            with_system(prompt, self._system), self._continuations(prompt), params, request_id=request_id
        )

    def element(self, prompt: Prompt, result: list[Output], model: str, revision: str) -> Scored:
        scores = [_score(*pair) for pair in zip(self._continuations(prompt), result, strict=True)]
        columns = {name: value for name, value in prompt.columns.items() if name != self._column}
        return Scored(
            id=prompt.id,
            scores=scores,
            model=model,
            revision=revision,
            columns=columns,
            **spent(result),
        )

    def _continuations(self, prompt: Prompt) -> list[str | list[int]]:
        if self._column not in prompt.columns:
            raise InvalidRequest(
                f"the row has no column `{self._column}`: takes the texts to score there, or in the column that "
                "continuations_column (--continuations_column) names"
            )
        given = prompt.columns[self._column]
        try:
            found = convert([given] if isinstance(given, str) else given, list[str | list[int]])
        except msgspec.ValidationError:
            found = []
        if not found:
            raise InvalidRequest(
                f"`{self._column}`: takes a string, or a list of one or more strings or lists of token ids"
            )
        return found


def _score(continuation: str | list[int], answer: Output) -> ContinuationScore:
    found = answer.prompt_logprobs
    assert found is not None, "a score has log-probabilities"
    return ContinuationScore(
        continuation=continuation,
        logprob=sum(found.logprobs),
        is_greedy=all(found.greedy),
        num_tokens=len(found.token_ids),
        token_ids=found.token_ids,
        token_logprobs=found.logprobs,
    )

"""Embed: prompts → vectors, from a language model's final hidden states.

embedded = prompts | Embed("org/model", pooling="mean")
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Unpack, get_args

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.request import Output, Pooling, RequestTask
from millrace.model_manager.wire.sampling import SamplingParams

from .elements.completions import Prompt
from .elements.prompt_rows import RowShape
from .elements.task_results import Embedded, spent
from .models.client import Client
from .requests.model_transform import ModelSettings, ModelTransform


class Embed(ModelTransform):
    """An Embedded for each prompt: its vector; otherwise as Generate.

    Sampling parameters do not matter, but for priority, deadline, cache_salt and adapter.
    """

    def __init__(
        self,
        model: str | ModelConfig,
        params: SamplingParams | None = None,
        *,
        template: str | None = None,
        pooling: Pooling = "last",
        normalize: bool = True,
        **settings: Unpack[ModelSettings],
    ) -> None:
        """`template`: Make each prompt from the row's columns: 'query: {text}'. A row that lacks a column is a dead
        letter.

        `pooling`: State that becomes the vector: the last token's, or the mean of all tokens' states.

        `normalize`: Scale each vector to length 1.

        `settings`: as millrace.transforms.requests.model_transform.ModelSettings explains them.
        """
        if pooling not in get_args(Pooling):
            raise ConfigError(f"pooling={pooling!r}: takes {' or '.join(get_args(Pooling))}")
        super().__init__(_Embedding(template, pooling, normalize), model, params, {"chat": False, **settings})


class _Embedding:
    result = Embedded
    name = "embed"
    request: RequestTask = "embed"

    def __init__(self, template: str | None, pooling: Pooling, normalize: bool) -> None:
        self.rows = RowShape(template=template)
        self._pooling = pooling
        self._normalize = normalize

    def id_parts(self, _prompt: Prompt) -> tuple[Any, ...]:
        return "embed", self._pooling, self._normalize

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        return client.embed(
            prompt.content, params, request_id=request_id, pooling=self._pooling, normalize=self._normalize
        )

    def element(self, prompt: Prompt, result: Output, model: str, revision: str) -> Embedded:
        return Embedded(
            id=prompt.id,
            embedding=result.vector,
            model=model,
            revision=revision,
            columns=prompt.columns,
            **spent([result]),
        )

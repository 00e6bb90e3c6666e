"""Embed: prompts → vectors, from a language model's final hidden states.

embedded = prompts | Embed("org/model", pooling="mean")
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, get_args

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.errors import ConfigError
from model_manager.wire.messages import Pooling
from model_manager.wire.sampling import SamplingParams
from transforms.client import Client, EmbeddingResult, Opener, open_engine_client
from transforms.elements import Prompt, Usage
from transforms.model_transform import ModelTransform
from transforms.task_elements import Embedded


class Embed(ModelTransform):
    """An Embedded for each prompt: its vector; otherwise as Generate.

    Sampling parameters do not matter, but for priority, deadline, cache_salt and adapter.
    """

    def __init__(
        self,
        model: str | ModelConfig,
        params: SamplingParams | None = None,
        *,
        pooling: Pooling = "last",
        normalize: bool = True,
        manager: ManagerConfig | None = None,
        chat: bool | None = False,
        fail_fast: bool = False,
        job: str | None = None,
        open_client: Opener = open_engine_client,
    ) -> None:
        """`pooling`: the last token's hidden state, or the mean of all. `normalize`: to length 1.

        The others as for Generate, but that text goes through no chat template unless told to.
        """
        if pooling not in get_args(Pooling):
            raise ConfigError(f"pooling={pooling!r}: takes {' or '.join(get_args(Pooling))}")
        super().__init__(
            _Embedding(pooling, normalize),
            model,
            params,
            manager=manager,
            chat=chat,
            fail_fast=fail_fast,
            job=job,
            open_client=open_client,
        )


class _Embedding:
    result = Embedded

    def __init__(self, pooling: Pooling, normalize: bool) -> None:
        self._pooling = pooling
        self._normalize = normalize

    def asked(self, _prompt: Prompt) -> tuple[Any, ...]:
        return "embed", self._pooling, self._normalize

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        return client.embed(
            prompt.content, params, request_id=request_id, pooling=self._pooling, normalize=self._normalize
        )

    def element(self, prompt: Prompt, result: EmbeddingResult, model: str) -> Embedded:
        return Embedded(
            id=prompt.id,
            embedding=[float(value) for value in result.vector],
            usage=Usage(result.prompt_tokens, result.cached_tokens),
            timings=result.timings,
            latency=result.latency,
            model=model,
            columns=prompt.columns,
        )

"""vLLM's OpenAI server by itself: OpenAI's own Python client asks for all requests at once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from benchmarks.sides.vllm_server import VllmServer
from benchmarks.texts import text_of, words_of
from benchmarks.workload import Item


class OpenAiClient:
    """`AsyncOpenAI.completions.create` for each request, gathered. Runs in vLLM's environment, which has `openai`."""

    def load(self, folder: Path, dtype: str) -> None:
        self._model, self._words = str(folder), words_of(folder)
        self._server = VllmServer(Path(sys.executable), folder, dtype)

    def run(self, items: list[Item]) -> list[int]:
        return asyncio.run(self._ask(items))

    async def _ask(self, items: list[Item]) -> list[int]:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(api_key="none", base_url=self._server.url, timeout=600) as client:
            answers = [
                client.completions.create(
                    model=self._model,
                    prompt=text_of(item, self._words),
                    max_tokens=item.num_output,
                    temperature=0,
                    extra_body={"ignore_eos": True},
                )
                for item in items
            ]
            return [answer.usage.completion_tokens for answer in await asyncio.gather(*answers)]

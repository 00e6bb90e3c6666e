"""A server as people write one today: FastAPI, with `model.generate` or OpenVINO GenAI behind its one route.

    python -m benchmarks.sides.fastapi_app generate|openvino FOLDER PORT DTYPE

It answers as much of OpenAI's `/v1/completions` as the load needs. Runs in an environment with FastAPI and the engine.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = Callable[[str, int], int]
"""A prompt and its number of new tokens → how many were generated; blocks, and any thread may call it."""


def generate(folder: Path, dtype: str) -> Answer:
    """`model.generate` for each request, in the threads that FastAPI runs plain functions in."""
    from transformers import AutoTokenizer

    from benchmarks.sides.transformers import load_transformers

    model, tokenizer = load_transformers(folder, dtype), AutoTokenizer.from_pretrained(folder)

    def answer(prompt: str, count: int) -> int:
        ids = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        tokenizer.decode(made[0])
        return int(made.shape[1] - ids["input_ids"].shape[1])

    return answer


def openvino(folder: Path, dtype: str) -> Answer:
    """OpenVINO GenAI's continuous batching: one thread steps, each request waits for its own handle."""
    import openvino_genai

    from benchmarks.sides.openvino import OpenVinoGenAi, exactly

    side = OpenVinoGenAi()
    side.load(folder, dtype)
    pipeline, added, numbers = side.pipeline, threading.Event(), iter(range(10**9))
    tokenizer, running = openvino_genai.Tokenizer(str(folder)), openvino_genai.GenerationStatus.RUNNING

    def step() -> None:
        while added.wait():
            added.clear()
            while pipeline.has_non_finished_requests():
                pipeline.step()

    threading.Thread(target=step, daemon=True).start()

    def answer(prompt: str, count: int) -> int:
        ids = tokenizer.encode(prompt).input_ids
        handle = pipeline.add_request(next(numbers), ids, exactly(count))
        added.set()
        while handle.get_status() == running:  # read_all holds the interpreter's lock while it waits
            time.sleep(0.002)
        made = handle.read_all()[0].generated_ids
        tokenizer.decode(made)
        return len(made)

    return answer


def main() -> None:
    """Serve until the process is ended."""
    import uvicorn
    from anyio import to_thread
    from fastapi import FastAPI  # type: ignore[import-not-found, unused-ignore]

    engine, folder, port, dtype = sys.argv[1:]
    answer = {"generate": generate, "openvino": openvino}[engine](Path(folder), dtype)
    app = FastAPI()

    @app.post("/v1/completions")
    def completions(body: dict[str, Any]) -> dict[str, Any]:
        count = answer(body["prompt"], body["max_tokens"])
        return {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": count}}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {}

    async def serve() -> None:
        to_thread.current_default_thread_limiter().total_tokens = 256  # by default 40 requests run at once
        await uvicorn.Server(uvicorn.Config(app, port=int(port), log_level="warning")).serve()

    asyncio.run(serve())


if __name__ == "__main__":
    main()

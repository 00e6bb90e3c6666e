"""A deployment of two replicas for Ray Serve that speaks OpenAI's completions, for `serve run CONFIG`.

The answer to a prompt is the prompt's own words, as many as `max_tokens` says, up to a stop word, and `seed` behind
them. A prompt of more than 64 words is refused. Each replica writes a line into FOLDER/replica-<process id> for each
prompt; a prompt that begins with "held" waits until FOLDER/release is there; one that begins with "slow" takes a while.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

MAX_MODEL_LEN = 64
"""Words of a prompt, at most."""


@serve.deployment(num_replicas=2, max_ongoing_requests=40, ray_actor_options={"num_cpus": 0.1})
class OpenAI:
    """`/v1/models` and `/v1/completions` of a model `m`."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.seen = self.folder / f"replica-{os.getpid()}"
        self.seen.touch()

    async def __call__(self, request: Request) -> JSONResponse:
        """Any request below the route's prefix."""
        if request.url.path.endswith("/models"):
            card = {"id": "m", "object": "model", "max_model_len": MAX_MODEL_LEN}
            return JSONResponse({"object": "list", "data": [card]})
        fields = await request.json()
        if fields.get("temperature", 0) > 2:
            return refused("temperature: takes 0 to 2")
        if len(fields["prompt"].split()) > MAX_MODEL_LEN:
            return refused(f"maximum context length is {MAX_MODEL_LEN} words")
        return JSONResponse(await self.complete(fields))

    async def complete(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer."""
        prompt = fields["prompt"]
        with self.seen.open("a") as seen:
            seen.write(f"{prompt}\n")
        while prompt.startswith("held") and not (self.folder / "release").exists():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2 * prompt.startswith("slow"))
        words = prompt.split()[: fields["max_tokens"]]
        stop = next((word for word in words if word in fields.get("stop", ())), None)
        words = words[: words.index(stop)] if stop else words
        reason = "stop" if stop or len(words) < fields["max_tokens"] else "length"
        if "seed" in fields:
            words.append(f"seed={fields['seed']}")
        choice = {"index": 0, "text": " ".join(words), "finish_reason": reason}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(words)}
        return {"object": "text_completion", "model": "m", "choices": [choice], "usage": usage}


def refused(why: str) -> JSONResponse:
    """What a request gets that the model does not take."""
    return JSONResponse({"error": {"message": why}}, status_code=400)


def app(arguments: dict[str, str]) -> Any:
    """The application, as the config names it."""
    deployment: Any = OpenAI
    return deployment.bind(arguments["folder"])

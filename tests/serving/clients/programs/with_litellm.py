"""LiteLLM: completions, streams, types, tools, vectors. Takes the URL and the model's name."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # without it, its import asks the network three times

import litellm
from pydantic import BaseModel

QUESTION: Any = [{"role": "user", "content": "What is the capital of Mexico?"}]
PARAMETERS = {"type": "object", "properties": {"country": {"enum": ["Mexico", "Italy"]}}, "required": ["country"]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS}}


class Town(BaseModel):
    """The capital of a country."""

    name: Literal["Mexico City", "Rome"]


def main(url: str, model: str) -> None:
    """Ask in each way."""
    common: dict[str, Any] = {"model": f"openai/{model}", "api_base": url, "api_key": "none", "num_retries": 0}
    asked = {**common, "messages": QUESTION, "temperature": 0, "max_tokens": 60}
    text = litellm.completion(**asked).choices[0].message.content
    assert "Mexico City" in text, text
    parts = litellm.completion(stream=True, stream_options={"include_usage": True}, **asked)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == text
    typed = litellm.completion(response_format=Town, **asked).choices[0].message.content
    Town.model_validate_json(typed)
    called = litellm.completion(tools=[TOOL], tool_choice="required", **asked).choices[0]
    (call,) = called.message.tool_calls
    assert call.function.name == "look_up"
    assert json.loads(call.function.arguments)["country"] in ("Mexico", "Italy")
    assert asyncio.run(litellm.acompletion(**asked)).choices[0].message.content == text
    as_text = {**asked, "model": f"text-completion-openai/{model}", "prompt": "The capital of Mexico is"}
    del as_text["messages"]
    assert litellm.text_completion(**as_text).choices[0].text
    assert len(litellm.embedding(input=["a", "b"], **common).data) == 2
    assert "top_p=2" in refusal({**asked, "top_p": 2})


def refusal(asked: dict[str, Any]) -> str:
    """Why a request is refused."""
    try:
        litellm.completion(**asked)
    except litellm.BadRequestError as error:
        return str(error)
    raise AssertionError("the request was answered")


if __name__ == "__main__":
    main(*sys.argv[1:])

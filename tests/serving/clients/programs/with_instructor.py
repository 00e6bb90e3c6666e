"""instructor: a type in, a value of it out, by tools and by a schema. Takes the URL and the model's name."""

from __future__ import annotations

import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Town(BaseModel):
    """The capital of a country."""

    name: Literal["Mexico City", "Rome"]


def main(url: str, model: str) -> None:
    """Ask in each mode."""
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(OpenAI(base_url=url, api_key="none", max_retries=0), mode=mode)
        question = [{"role": "user", "content": "What is the capital of Mexico?"}]
        asked = {"model": model, "messages": question, "temperature": 0, "max_retries": 0, "max_tokens": 60}
        town = client.chat.completions.create(response_model=Town, **asked)
        assert isinstance(town, Town), town
        parts = list(client.chat.completions.create_partial(response_model=Town, **asked))
        assert parts[-1].name == town.name, parts


if __name__ == "__main__":
    main(*sys.argv[1:])

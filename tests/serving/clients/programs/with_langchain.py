"""LangChain's ChatOpenAI: whole, streamed, typed, with tools and what they gave. Takes the URL and the model's name."""

from __future__ import annotations

import sys
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

QUESTION = "What is the capital of Mexico?"


class Town(BaseModel):
    """The capital of a country."""

    name: Literal["Mexico City", "Rome"]


@tool
def look_up(country: Literal["Mexico", "Italy"]) -> str:
    """Looks up the capital of a country."""
    return {"Mexico": "Mexico City", "Italy": "Rome"}[country]


def main(url: str, name: str) -> None:
    """Ask in each way."""
    common: dict[str, Any] = {"model": name, "base_url": url, "api_key": "none", "max_retries": 0}
    model = ChatOpenAI(temperature=0, max_tokens=60, **common)
    answer = model.invoke(QUESTION)
    assert "Mexico City" in answer.content, answer
    chunks = list(model.stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == answer.content
    assert [each.content for each in model.batch([QUESTION, QUESTION])] == [answer.content] * 2
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Town, method=method).invoke(QUESTION), Town)
    with_tools(model)
    completion = OpenAI(temperature=0, max_tokens=5, **common).invoke("The capital of Mexico is")
    assert completion
    vectors = OpenAIEmbeddings(check_embedding_ctx_length=False, **common).embed_documents(["a", "b"])
    assert len(vectors) == 2
    assert vectors[0] != vectors[1]


def with_tools(model: ChatOpenAI) -> None:
    """A call, what it gave, and the answer to that."""
    asked = HumanMessage(QUESTION)
    bound = model.bind_tools([look_up], tool_choice="any")
    call = bound.invoke([asked])
    assert [each["name"] for each in call.tool_calls] == ["look_up"], call
    total: Any = None
    for chunk in bound.stream([asked]):
        total = chunk if total is None else total + chunk
    assert [each["args"] for each in total.tool_calls] == [each["args"] for each in call.tool_calls]
    given = ToolMessage(look_up.invoke(call.tool_calls[0]["args"]), tool_call_id=call.tool_calls[0]["id"])
    assert model.bind_tools([look_up]).invoke([asked, call, given]).content is not None


if __name__ == "__main__":
    main(*sys.argv[1:])

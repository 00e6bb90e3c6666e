"""`/tokenize` and `/detokenize`: how long a text, and a list of tokens, may be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.servers import Server

LONG = "a b " * 2**21
"""Characters of a body that is just not too large: their tokens take ten seconds to find."""


@pytest.mark.parametrize(
    "asked", [{"prompt": LONG}, {"messages": [{"role": "user", "content": LONG}]}], ids=["text", "chat"]
)
def test_a_text_that_no_prompt_is_as_long_as_is_not_tokenized(server: Server, asked: dict[str, Any]) -> None:
    answer = server.post("/tokenize", asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "characters" in answer.json()["error"]["message"]


def test_no_more_tokens_than_a_prompt_may_have_become_text(server: Server) -> None:
    most = server.post("/tokenize", {"prompt": "a"}).json()["max_model_len"]
    assert server.post("/detokenize", {"tokens": [70] * most}).json() == {"prompt": "a" * most}
    answer = server.post("/detokenize", {"tokens": [70] * (most + 1)})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "tokens")
    assert f"tokens: the list has {most + 1:,} ids" in error["message"]

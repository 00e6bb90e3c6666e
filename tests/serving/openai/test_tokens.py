"""`/tokenize`: how long a text may be."""

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

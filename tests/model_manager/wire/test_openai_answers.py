"""Log-probabilities in OpenAI's form."""

from __future__ import annotations

from millrace.model_manager.wire.logprobs import TokenLogprob, TopLogprob
from millrace.model_manager.wire.openai_answers import chat_logprobs


def test_tokens_have_their_bytes_and_parts_of_characters_have_none() -> None:
    tops = [TopLogprob("é", 1, -1.0), TopLogprob("\ufffd", 2, -2.0)]
    found = chat_logprobs([TokenLogprob("é", 1, -1.0, tops), TokenLogprob("\ufffd", 2, -2.0, [])])
    assert found is not None
    assert [each["bytes"] for each in found["content"]] == [[0xC3, 0xA9], None]
    assert [each["bytes"] for each in found["content"][0]["top_logprobs"]] == [[0xC3, 0xA9], None]

"""Log-probabilities in OpenAI's form."""

from __future__ import annotations

from millrace.model_manager.wire.logprobs import TokenLogprob, TopLogprob
from millrace.model_manager.wire.openai_answers import logprobs_of


def test_tokens_have_their_bytes_and_parts_of_characters_have_none() -> None:
    tops = [TopLogprob("é", 1, -1.0), TopLogprob("\ufffd", 2, -2.0)]
    found = logprobs_of([TokenLogprob("é", 1, -1.0, tops), TokenLogprob("\ufffd", 2, -2.0, [])], is_chat=True)
    assert found is not None
    assert [each["bytes"] for each in found["content"]] == [[0xC3, 0xA9], None]
    assert [each["bytes"] for each in found["content"][0]["top_logprobs"]] == [[0xC3, 0xA9], None]


def test_offsets_are_those_of_the_tokens_texts() -> None:
    tokens = [TokenLogprob(text, 1, -1.0, []) for text in ("Mexico", " City", "")]
    for offset in (0, 7):
        found = logprobs_of(tokens, is_chat=False, offset=offset)
        assert found is not None
        assert found["text_offset"] == [offset, offset + 6, offset + 11]

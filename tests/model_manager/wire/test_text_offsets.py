"""Where tokens are in a text, given whole or in any parts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.logprobs import TokenLogprob
from millrace.model_manager.wire.text_offsets import Decode, TextOffsets, text_offsets

END = 1000
"""A special token; all others are bytes, joined in twos from 256 on."""


def decoded(ids: Sequence[int]) -> str:
    pieces = (bytes([each]) if each < 256 else pair(each) for each in ids if each != END)
    return b"".join(pieces).decode(errors="replace")


def pair(token: int) -> bytes:
    return PAIRS[token - 256]


PAIRS = ["天".encode()[:2], "é".encode(), b"lo", b" a", "😀".encode()[2:]]


def stripped(ids: Sequence[int]) -> str:
    """As Llama's tokenizer decodes: a text has no space before it, so the token of a space has no text alone."""
    return decoded(ids).removeprefix(" ")


def tokens_of(ids: Sequence[int], decode: Decode = decoded) -> list[TokenLogprob]:
    return [TokenLogprob("</s>" if each == END else decode([each]), each, -1.0, []) for each in ids]


def test_tokens_are_where_their_texts_are() -> None:
    assert text_offsets("hello a", tokens_of([*b"hel", 258, 259])) == [0, 1, 2, 3, 5]
    assert text_offsets("hello a", tokens_of([*b"hel", 258, 259]), decoded, 7) == [7, 8, 9, 10, 12]


def test_a_token_that_is_not_in_the_text_has_no_width() -> None:
    for decode in (decoded, None):
        assert text_offsets("ab", tokens_of([END, 97, END, END, 98, END]), decode) == [0, 0, 1, 1, 1, 2]
    assert text_offsets("</s>", tokens_of([END, *b"</s>"]), decoded) == [0, 0, 1, 2, 3]


def test_parts_of_a_character_are_where_it_begins() -> None:
    ids = [256, "天".encode()[2], *"😀é".encode(), 97]
    assert text_offsets("天😀éa", tokens_of(ids), decoded) == [0, 0, 1, 1, 1, 1, 2, 2, 3]
    assert text_offsets("天😀éa", tokens_of(ids)) == [0, 0, 0, 0, 0, 0, 0, 0, 3]


def test_parts_of_a_character_are_behind_a_space_whose_token_has_no_text_alone() -> None:
    ids = [END, 32, *"天 😀".encode(), 259, 32, 97]
    assert text_offsets(" 天 😀 a a", tokens_of(ids, stripped), stripped) == [0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 5, 6, 7]


def test_what_is_no_character_is_passed_over() -> None:
    ids = [97, 0xA4, 0xA4, 98, 0xE5]
    assert text_offsets("a\ufffd\ufffdb", tokens_of(ids), decoded) == [0, 1, 1, 3, 4]


@pytest.mark.parametrize(("text", "offsets"), [("ab l", [0, 1, 3]), ("ab", [0, 1, 2]), ("", [0, 0, 0])])
def test_tokens_behind_a_stop_string_are_at_the_end(text: str, offsets: list[int]) -> None:
    assert text_offsets(text, tokens_of([97, 98, 258]), decoded) == offsets


@given(st.data(), st.lists(st.sampled_from([97, 98, 32, END, 0xE5, 0xA4, 0xA9, *range(256, 261)]), max_size=12))
def test_in_parts_offsets_are_those_of_the_whole_and_within_the_text(data: st.DataObject, ids: list[int]) -> None:
    decode = data.draw(st.sampled_from([decoded, stripped, None]))
    tokens = tokens_of(ids, decode or decoded)
    text = decoded(ids)[: data.draw(st.integers(0, 12))]
    whole = text_offsets(text, tokens, decode)
    assert whole == sorted(whole)
    assert all(0 <= offset <= len(text) for offset in whole)
    first, second = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(tokens)))
    placing = TextOffsets(decode)
    parts = [placing.add(text[:first], tokens[:second]), placing.add(text[first:], tokens[second:])]
    parts.append(placing.add("", [], is_last=True))
    assert [each for placed, _ in parts for each in placed] == tokens
    assert [each for _, offsets in parts for each in offsets] == whole

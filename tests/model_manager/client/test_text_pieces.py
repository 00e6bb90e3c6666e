"""Text comes in pieces that no later token changes, as soon as it can, at a cost that does not grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.client.text_pieces import REPLACEMENT, TextPieces
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from tests.model_manager.client.tokenizers_made_here import KINDS, TEXTS, save

_BYTE_KIND = "metaspace_bpe_with_byte_fallback"
_MANY = [*TEXTS[:4], "e\u0301a\u0308 ക്ഷ 한국어 👩🏽‍🚀🏳️‍🌈", "  two  spaces \n\n", "東京は日本の首都です。" * 5]

every_kind = pytest.mark.parametrize("kind", [*KINDS, EMBEDDED_MODEL])
every_way = pytest.mark.parametrize("joined", [False, True], ids=["decoded", "joined"])


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {
        name: Tokenizer.load(save(make(), folder / name, clean_up_tokenization_spaces=False))
        for name, make in KINDS.items()
    }
    return made | {EMBEDDED_MODEL: Tokenizer.load(resolve(EMBEDDED_MODEL))}


def whole(tokenizer: Tokenizer, ids: Sequence[int], joined: bool) -> str:
    return tokenizer.joined(ids) if joined else tokenizer.decode(ids)


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int], joined: bool) -> list[str]:
    """The text that was out after each token."""
    pieces = tokenizer.pieces(joined=joined)
    assert pieces is not None
    out, texts = "", []
    for token in ids:
        out += pieces.push(token)
        texts.append(out)
    return texts


def is_byte(tokenizer: Tokenizer, token: int) -> bool:
    name = tokenizer._encoder.id_to_token(token) or ""
    return name.startswith("<0x")


@every_kind
@every_way
def test_no_piece_is_taken_back_and_all_are_there_in_time(
    tokenizers: Mapping[str, Tokenizer], kind: str, joined: bool
) -> None:
    tokenizer = tokenizers[kind]
    size = tokenizer._encoder.get_vocab_size()
    tokens = st.one_of(
        st.lists(st.integers(0, size + 2), max_size=30),
        st.text(max_size=30).map(lambda text: tokenizer.encode(text, add_special_tokens=False)),
        st.sampled_from(_MANY).map(lambda text: tokenizer.encode(text, add_special_tokens=False)),
    )

    @settings(max_examples=50)
    @given(st.lists(tokens, max_size=4))
    def hold(parts: list[list[int]]) -> None:
        ids = [token for part in parts for token in part]
        texts = pieces_of(tokenizer, ids, joined)
        for count, text in enumerate(texts, 1):
            full = whole(tokenizer, ids[:count], joined)
            assert full.startswith(text)
            visible = [token for token in ids[:count] if tokenizer._has_text(token)]
            if visible and not full.endswith(REPLACEMENT) and not is_byte(tokenizer, visible[-1]):
                assert text == full

    hold()


@every_kind
def test_a_long_text_comes_whole(tokenizers: Mapping[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(" ".join(_MANY) + " end", add_special_tokens=False)
    assert pieces_of(tokenizer, ids, joined=False)[-1] == tokenizer.decode(ids)


@pytest.mark.parametrize(
    "text",
    ["a" * 4000, "word " * 1000, " " * 3000, "东京" * 1000, "\ufffd" * 1000, "🙂" * 500],
    ids=lambda text: text[:5],
)
@every_kind
def test_a_token_costs_the_same_however_long_the_output_is(
    tokenizers: Mapping[str, Tokenizer], kind: str, text: str
) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text, add_special_tokens=False) + tokenizer.encode(" end", add_special_tokens=False)
    decoded: list[int] = []

    def decode(window: Sequence[int]) -> str:
        decoded.append(len(window))
        return tokenizer.decode(window)

    pieces = TextPieces(decode, tokenizer._has_text, tokenizer._byte_ids)
    assert "".join(map(pieces.push, ids)) == tokenizer.decode(ids)
    assert sum(decoded) <= 12 * len(ids)


def test_a_run_of_bytes_waits_for_its_end(tokenizers: Mapping[str, Tokenizer]) -> None:
    tokenizer = tokenizers[_BYTE_KIND]
    vocabulary = tokenizer._encoder.get_vocab()
    run = [vocabulary[f"<0x{byte:02X}>"] for byte in "好é".encode()]
    stray, word = vocabulary["<0xFF>"], vocabulary["a"]
    assert pieces_of(tokenizer, [word, *run, word], joined=False)[1:] == ["a"] * len(run) + ["a好éa"]
    broken = pieces_of(tokenizer, [word, *run, stray, word], joined=False)
    assert broken[-1] == "a" + REPLACEMENT * (len(run) + 1) + "a"


def test_texts_that_are_cleaned_have_no_pieces_but_as_constraints_take_them(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(KINDS["word_piece"](), tmp_path))
    assert tokenizer.pieces(joined=False) is None
    assert tokenizer.pieces(joined=True) is not None

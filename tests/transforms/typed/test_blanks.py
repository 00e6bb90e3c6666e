"""No span begins or ends with what shows nothing, whatever the document holds, and no other piece is kept out."""

import json
import sys
import unicodedata

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.model_manager.grammars.compiling import allowed
from millrace.model_manager.wire.constraint import Constraint
from millrace.transforms.typed.answer_values import read
from millrace.transforms.typed.blanks import BLANKS, is_blank
from millrace.transforms.typed.record_grammar import RecordGrammar, pieces
from millrace.transforms.typed.shapes import Maybe, Member, Piece, Record, Shape, Span
from tests.transforms.constrained_client import answer, compiler

ZERO_WIDTH = "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a\u202e\u2060\u2066\u2069\ufeff"
JOINERS = "\u200c\u200d"
SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2000\u2003\u2009\u2028\u2029\u202f\u205f\u3000"
SHOWN = 'aé"\\/n0.\u0301\ufe0fन्語한\U0001f600\U0001f468\u0600\u0e33'
DOCUMENTS = st.lists(
    st.one_of(
        st.sampled_from([*SPACES, *ZERO_WIDTH, *JOINERS, "\0", "\x07", "\x7f", "\x9f"]),
        st.sampled_from(
            [*SHOWN, "\\u00a0", "\\n", "\r\n", "\U0001f468\u200d\U0001f469", "മ\u0d7b", "ന്\u200d", "می\u200cخ"]
        ),
        st.characters(codec="utf-8"),
    ),
    min_size=1,
    max_size=14,
).map("".join)
SPANS = st.sampled_from([Span.words, Span.chars])


def shows_nothing(char: str) -> bool:
    return char.isspace() or char in ZERO_WIDTH or unicodedata.category(char) == "Cc"


def is_span(text: str) -> bool:
    """What a span may be: at its end may be joiners behind what shows."""
    ends = text[:1] + text.rstrip(JOINERS)[-1:]
    return len(ends) == 2 and text[0] not in JOINERS and not any(map(shows_nothing, ends))


def record(shape: Shape) -> Record:
    return Record("Row", (Member("a", shape, "a"),))


def spans(document: str, by: Span) -> set[str]:
    """All there are, by comparing."""
    cut = pieces(document, by.by)
    found = ("".join(cut[start:end]) for start in range(len(cut)) for end in range(start + 1, len(cut) + 1))
    return {text for text in found if is_span(text)}


def takes(grammar: str, value: str | None) -> bool:
    text = json.dumps({"a": value}, ensure_ascii=False)
    return allowed(Constraint(grammar=grammar), text) == len(text.encode())


def test_blanks_are_all_white_space_all_control_characters_and_what_has_no_width() -> None:
    blank = regex.compile(f"[{BLANKS}]")
    characters = map(chr, range(sys.maxunicode + 1))
    missed = [char for char in characters if shows_nothing(char) and not blank.match(char)]
    assert missed == []
    assert not any(map(blank.match, JOINERS + "\ufe0f\u0301\u0600\ufffd\U000e0067"))
    assert is_blank(SPACES + ZERO_WIDTH + JOINERS + "\0")
    assert not is_blank("\ufeff.")


@settings(max_examples=120)
@given(DOCUMENTS.filter(lambda text: not is_blank(text)), SPANS, st.integers(0, 2**31))
@example("\u3000 \U0001f600\u200d \u200d", Span.words, 0)
@example("\u0600 \xa0", Span.words, 0)
@example('\\u00a0\\ "\x1f', Span.chars, 0)
def test_whatever_is_let_through_is_a_piece_that_begins_and_ends_with_what_shows(
    document: str, span: Span, seed: int
) -> None:
    compiled = compiler().compile(Constraint(grammar=RecordGrammar(record(Piece(span))).of(document)))
    for each in range(seed, seed + 8):
        text = compiled.tokenizer.decode_bytes(answer(compiled, each)[0]).decode()
        piece = json.loads(text)["a"]
        assert is_span(piece)
        start, end = read(record(Piece(span)), text, document).spans["a"]
        assert document[start:end] == piece


@settings(max_examples=60)
@given(DOCUMENTS.filter(lambda text: not is_blank(text)), SPANS)
@example("\u200da \U0001f600", Span.words)
@example("ന്\u200d \u200d", Span.words)
@example("\u0600 \xa0.", Span.words)
def test_every_piece_that_begins_and_ends_with_what_shows_is_let_through_and_no_other(
    document: str, span: Span
) -> None:
    grammar = RecordGrammar(record(Piece(span))).of(document)
    expected = spans(document, span)
    assert expected
    assert [text for text in sorted(expected) if not takes(grammar, text)] == []
    others = {document[start:end] for start in range(len(document)) for end in range(start, len(document) + 1)}
    assert [text for text in sorted(others - expected) if takes(grammar, text)] == []


@settings(max_examples=100)
@given(DOCUMENTS)
def test_words_are_never_cut_so_that_trimming_would_cut_them_again(document: str) -> None:
    words = pieces(document, "words")
    assert "".join(words) == document
    assert [word for word in words if not is_blank(word) and not is_span(word)] == []


@pytest.mark.parametrize("document", [" ", "\xa0\u3000", "\ufeff", "\0\0", "\u200b\u2060", JOINERS, "\u2028\x85\x1f"])
def test_an_optional_span_of_a_document_that_shows_nothing_can_be_null_alone(document: str) -> None:
    for span in (Span.words, Span.chars):
        grammar = RecordGrammar(record(Maybe(Piece(span)))).of(document)
        assert takes(grammar, None)
        assert not takes(grammar, document)
        compiled = compiler().compile(Constraint(grammar=grammar))
        assert [compiled.tokenizer.decode_bytes(answer(compiled, seed)[0]) for seed in range(3)] == [b'{"a": null}'] * 3

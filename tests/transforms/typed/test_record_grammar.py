"""Whatever a grammar lets through is read back, validates against the schema, and survives Beam's coder."""

import json
from pathlib import Path

import jsonschema
import pytest
from apache_beam.coders import registry
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import Span
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import AnswerRejected
from millrace.transforms.typed.answer_values import Reading, read
from millrace.transforms.typed.beam_schemas import element_type
from millrace.transforms.typed.blanks import is_blank
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.examples import example_answer
from millrace.transforms.typed.json_schemas import schema_of
from millrace.transforms.typed.leaves import bare, choice
from millrace.transforms.typed.record_grammar import RecordGrammar
from millrace.transforms.typed.shapes import Items, Kind, Leaf, Maybe, Member, Piece, Record, Shape
from millrace.transforms.typed.values import decoded, value_of
from tests.transforms.constrained_client import answer, compiler
from tests.transforms.typed.invoices import SCHEMA

DOCUMENT = 'Order "77" of\n3 March:\tAnna\\ Larsen — bought 2 × lämp \U0001f600, 4.50 EUR each\x1f.'


def sentence(grammar: str, seed: int) -> str:
    compiled = compiler().compile(Constraint(grammar=grammar))
    return compiled.tokenizer.decode_bytes(answer(compiled, seed)[0]).decode()


def checked(record: Record, text: str, document: str) -> Reading:
    found = read(record, text, document)
    jsonschema.Draft202012Validator(schema_of(record)).validate(json.loads(found.json))
    value = value_of(record, decoded(found.json))
    coder = registry.get_coder(element_type(record))
    assert coder.decode(coder.encode(value)) == value
    return found


KINDS: tuple[Kind, ...] = ("text", "integer", "number", "decimal", "boolean", "date", "datetime")
LEAVES: st.SearchStrategy[Shape] = st.sampled_from(
    [
        *(bare(kind) for kind in KINDS),
        Piece(Span.words),
        Piece(Span.chars),
        choice(["a", 'b "c"', "é\n"]),
        choice([3, -4]),
        Leaf("integer", {"type": "integer", "minimum": 3}),
        Leaf("number", {"type": "number", "exclusiveMaximum": 0}),
        Leaf("decimal", {"type": "number", "minimum": -2, "maximum": 7.5}, places=1),
        Leaf("decimal", {"type": "number", "minimum": 9, "maximum": 10**30}, digits=3, places=2),
        Leaf("text", {"type": "string", "minLength": 2, "maxLength": 5}),
        Leaf("json", {"type": ["string", "integer"], "maxLength": 3}),
    ]
)


def records(shapes: st.SearchStrategy[Shape]) -> st.SearchStrategy[Record]:
    member = st.builds(lambda *given: given, shapes, st.sampled_from(["", "which one, if any?"]), st.booleans())
    return st.lists(member, min_size=1, max_size=4).map(
        lambda members: Record(
            "Row",
            tuple(
                Member(f"f{at}", shape, f'key "{at}"\\', question, required=required)
                for at, (shape, question, required) in enumerate(members)
            ),
        )
    )


def wider(shapes: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    lists = st.builds(
        lambda item, least, more: Items(item, least, None if more is None else least + more),
        shapes,
        st.integers(0, 2),
        st.sampled_from([None, 0, 1, 3]),
    )
    return st.one_of(
        lists, records(shapes), shapes.map(lambda shape: shape if isinstance(shape, Maybe) else Maybe(shape))
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(records(st.recursive(LEAVES, wider, max_leaves=5)), st.integers(0, 2**31))
def test_every_sentence_of_a_random_type_is_a_row(record: Record, seed: int) -> None:
    checked(record, sentence(RecordGrammar(record).of(DOCUMENT), seed), DOCUMENT)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(lambda text: not is_blank(text)),
    st.sampled_from([Span.words, Span.chars]),
    st.integers(0, 2**31),
)
def test_a_span_is_a_piece_of_any_document_where_its_offsets_say(document: str, span: Span, seed: int) -> None:
    record = Record("Row", (Member("a", Piece(span), "a"), Member("b", Items(Piece(span), 2, 3), "b")))
    found = checked(record, sentence(RecordGrammar(record).of(document), seed), document)
    values = json.loads(found.json)
    pieces = {"a": values["a"]} | {f"b[{at}]": value for at, value in enumerate(values["b"])}
    assert {path: document[start:end] for path, (start, end) in found.spans.items()} == pieces


def test_nothing_but_pieces_of_the_document_is_let_through() -> None:
    record = Record("Row", (Member("a", Piece(Span.words), "a"),))
    compiled = compiler().compile(Constraint(grammar=RecordGrammar(record).of('Anna "Lee" Larsen\nbought')))

    def accepted(piece: str) -> bool:
        tokens = compiled.tokenizer.tokenize_str('{"a": ' + json.dumps(piece) + "}")
        matcher = compiled.matcher()
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert [piece for piece in ("Anna", '"Lee" Larsen', "Larsen\nbought", '"', 'Lee"') if not accepted(piece)] == []
    assert [piece for piece in ("", "Ann", "anna", "Anna Larsen", " Lee", "Anna ", "\nbought") if accepted(piece)] == []


def test_a_word_of_a_hundred_thousand_characters_document_is_found() -> None:
    document = " ".join(f'word{number} "quoted"\n' for number in range(6200))
    assert len(document) > 100_000
    for span in (Span.words, Span.chars):
        record = Record("Row", (Member("a", Piece(span), "a"),))
        compiled = compiler().compile(Constraint(grammar=RecordGrammar(record).of(document)))
        tokens = compiled.tokenizer.tokenize_str('{"a": "word6100 \\"quoted\\""}')
        matcher = compiled.matcher()
        assert matcher.try_consume_tokens(tokens) == len(tokens)
        start = document.index("word6100")
        assert read(record, '{"a": "word6100 \\"quoted\\""}', document).spans == {"a": (start, start + 17)}


def test_an_example_is_written_as_the_grammar_would(tmp_path: Path) -> None:
    (tmp_path / "parcel.json").write_text(json.dumps(SCHEMA))
    record = record_of(tmp_path / "parcel.json")
    value = {"order-id": 4, "day": None, "tags": ["a"], "size": {"w": 1.5}}
    text = example_answer(record, value)
    assert text == '{"order-id": 4, "day": null, "size": {"w": 1.5}, "tags": ["a"]}'
    compiled = compiler().compile(Constraint(grammar=RecordGrammar(record).of("")))
    tokens = compiled.tokenizer.tokenize_str(text)
    matcher = compiled.matcher()
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": "x"} ', '{"a": "Anna"} and more', '{"b": "Anna"}', '{"a": "Anna", "a": "Anna"}', "[]", '{"a": 3}'],
)
def test_what_is_no_answer_is_rejected(text: str) -> None:
    with pytest.raises(AnswerRejected):
        read(Record("Row", (Member("a", Piece(Span.words), "a"),)), text, "Anna Larsen")

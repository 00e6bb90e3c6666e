"""The documents are what they claim to be, and are asked about as the product asks."""

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import jsonschema
import pytest
from tokenizers import Tokenizer

from examples.embedded_model.documents.evaluate import WHOLE, evaluate, extracted, held_out, judged
from examples.embedded_model.documents.facts import Document
from examples.embedded_model.documents.questions import DOCUMENT_KINDS, Kind, answer, prompt
from examples.embedded_model.documents.write import EACH, example_documents, files
from examples.embedded_model.evaluate import EVALUATION_SEED, Judged, field_accuracy
from examples.embedded_model.split import Example, Split
from millrace import Extract
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.constraint import Constraint
from millrace.transforms.typed.answer_values import read
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.record_grammar import RecordGrammar
from millrace.transforms.typed.values import decoded, value_of
from tests.runtime_folders import EMBEDDED, model_loaded
from tests.transforms.constrained_client import ConstrainedClient, compiler

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "model_manager" / "store" / "embedded" / "millrace-tiny"
SHIPPED = ROOT / "examples" / "documents"
KINDS = list(DOCUMENT_KINDS.values())
of_each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def drawn(kind: Kind, count: int, split: Split = Split.TRAIN) -> list[Document]:
    rng = random.Random(f"{kind.name}|{split}")
    return [kind.make(rng, split) for _ in range(count)]


@of_each_kind
def test_every_answer_is_a_row_of_its_document(kind: Kind) -> None:
    rng = random.Random(5)
    for document in drawn(kind, 300):
        asked = kind.asked(rng, document.facts)
        reading = read(asked.record, answer(asked, document.facts), document.text)
        value_of(asked.record, decoded(reading.json))


@of_each_kind
def test_the_grammar_takes_every_answer(kind: Kind) -> None:
    rng = random.Random(6)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for document in drawn(kind, 6):
        asked = kind.asked(rng, document.facts)
        grammar = RecordGrammar(asked.record).of(document.text)
        matcher = compiler().compile(Constraint(grammar=grammar)).matcher()
        tokens = tokenizer.encode(answer(asked, document.facts)).ids
        assert matcher.validate_tokens(tokens) == len(tokens)
        assert matcher.consume_tokens(tokens)
        assert matcher.is_accepting()


@of_each_kind
def test_the_prompt_is_that_of_extract(kind: Kind) -> None:
    document = drawn(kind, 1)[0]
    assert prompt(kind.record, document.text) == Extract(kind.rows, "millrace-tiny").prompt(document.text)


@of_each_kind
def test_what_is_asked_stands_in_the_document(kind: Kind) -> None:
    for document in drawn(kind, 200):
        digits = document.text.replace(",", "").replace(".", "")
        for name, value in document.facts.items():
            if isinstance(value, Decimal):
                assert f"{value:.2f}".replace(".", "") in digits, (name, document)
            elif hasattr(value, "year"):
                assert str(value.year) in document.text, (name, document)
            elif isinstance(value, str) and name not in ("sentiment", "priority", "terms", "currency"):
                assert value in document.text, (name, document)


@of_each_kind
def test_no_name_of_a_held_out_document_is_in_training(kind: Kind) -> None:
    def names(documents: list[Document]) -> set[str]:
        told = [name for name in ("number", "customer", "seller", "product") if name in documents[0].facts]
        found = {str(each.facts[name]) for each in documents for name in told}
        return found | {item for each in documents for item in each.facts.get("items", ())}

    assert not names(drawn(kind, 300, Split.HELD_OUT)) & names(drawn(kind, 3000))


def test_the_shipped_documents_are_what_the_generator_writes() -> None:
    written = dict(files())
    assert len([name for name in written if name.endswith(".txt")]) == EACH * len(KINDS)
    for name, content in written.items():
        assert (SHIPPED / name).read_text(encoding="utf-8") == content, name
    shipped = {
        str(file.relative_to(SHIPPED)) for file in SHIPPED.rglob("*") if file.suffix in (".txt", ".jsonl", ".json")
    }
    assert shipped == written.keys()


@pytest.mark.parametrize(("schema", "rows"), [("order", "orders"), ("invoice", "invoices"), ("review", "reviews")])
def test_the_rows_that_are_expected_are_valid_under_the_schema(schema: str, rows: str) -> None:
    given = json.loads((SHIPPED / f"{schema}.json").read_text())
    lines = (SHIPPED / f"{rows}.expected.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines):
        jsonschema.validate(row["expected"], given, format_checker=jsonschema.FormatChecker())
        assert (SHIPPED / row["id"]).is_file()


@of_each_kind
def test_the_schema_file_has_the_fields_of_the_type(kind: Kind) -> None:
    schema = record_of(SHIPPED / f"{kind.rows.__name__.lower()}.json")
    assert [member.key for member in schema.members] == [member.key for member in kind.record.members]


@of_each_kind
def test_no_shipped_document_is_one_of_those_that_figures_are_made_of(kind: Kind) -> None:
    figures = {document.text for document in held_out(kind, 100, EVALUATION_SEED)}
    assert not figures & {document.text for document in example_documents(kind)}


def test_a_field_is_right_or_wrong_by_itself() -> None:
    expected = {"number": "A1", "total": Decimal("4.50"), "city": None}
    assert judged(expected, dict(expected)) == dict.fromkeys([*expected, WHOLE], True)
    assert judged(expected, {**expected, "city": "Oslo"}) == {
        "number": True,
        "total": True,
        "city": False,
        WHOLE: False,
    }
    said = ('{"a": 1, "b": null}', '{"a": 2, "b": null}', "no JSON")
    rows = [Judged(Example("any", "", '{"a": 1, "b": null}'), text) for text in said]
    assert field_accuracy(rows) == 3 / 6


def test_figures_come_out_of_extract(tmp_path: Path) -> None:
    kind = DOCUMENT_KINDS["review_rows"]
    extracted(kind, held_out(kind, 4, 1), ModelConfig(model="any"), tmp_path, open_client=ConstrainedClient)
    right = dict(json.loads(line) for file in tmp_path.glob("right-*") for line in file.read_text().splitlines())
    assert right.keys() == {member.name for member in kind.record.members} | {WHOLE}
    assert right[WHOLE] == 0
    assert sum(file.read_text().count("expected") for file in tmp_path.glob("wrong-*")) == 4


@pytest.fixture(scope="module")
def shipped_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with model_loaded(tmp_path_factory.mktemp("documents") / "run"):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("shipped_model")
@of_each_kind
def test_the_shipped_model_finds_the_fields(kind: Kind) -> None:
    shares = evaluate(kind, 60, EVALUATION_SEED + 1, EMBEDDED, show_errors=3)
    assert shares["fields"] >= 0.95

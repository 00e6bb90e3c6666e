"""Extract and Classify with the embedded model, in its own process."""

from __future__ import annotations

import datetime
import json
from typing import Annotated, Any, NamedTuple

import apache_beam as beam
import jsonschema
import pytest

from model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from model_manager.wire.sampling import SamplingParams
from tests.transforms.running import check, pipeline
from transforms import Ask, Classify, Extract, Span

MODEL = ModelConfig(model=EMBEDDED_MODEL, max_num_seqs=8)
DOCUMENTS = [
    {
        "id": f"{number}",
        "prompt": f'Order {number}: 2 x "lamp"\nfor Anna Larsen, 4.50 EUR each, to Oslo.',
        "shop": number,
    }
    for number in range(4)
]


class Line(NamedTuple):
    item: Annotated[str, Span.chars]
    quantity: int


class Order(NamedTuple):
    customer: Annotated[str, Span()]
    day: Annotated[datetime.date | None, Ask("the day of the order, YYYY-MM-DD")]
    lines: list[Line]


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("params", "least"), [(SamplingParams(max_tokens=200), 4), (SamplingParams(max_tokens=60, temperature=1.5), 1)]
)
def test_every_row_is_valid_and_its_pieces_stand_in_the_document(params: SamplingParams, least: int) -> None:
    transform = Extract(Order, MODEL, params, details=True).with_exception_handling()
    schema = transform.schema

    def valid(found: tuple[list[Any], list[Any]]) -> bool:
        rows, letters = found
        texts = {document["id"]: str(document["prompt"]) for document in DOCUMENTS}
        for row in rows:
            value = row.value
            given = {
                "customer": value.customer,
                "day": value.day and value.day.isoformat(),
                "lines": [{"item": line.item, "quantity": line.quantity} for line in value.lines],
            }
            jsonschema.Draft202012Validator(schema).validate(given)
            pieces = {"customer": value.customer} | {
                f"lines[{at}].item": each.item for at, each in enumerate(value.lines)
            }
            assert {path: texts[row.id][where.start : where.end] for path, where in row.spans.items()} == pieces
            assert json.loads(row.columns) == {"shop": int(row.id)}
            assert row.confidence <= 0.0
            assert row.confidences.keys() >= pieces.keys()
        assert {letter.error for letter in letters} <= {"ConstraintNotMet"}
        return len(rows) + len(letters) == len(DOCUMENTS) and len(rows) >= least

    with pipeline() as running:
        rows, letters = running | beam.Create(DOCUMENTS) | transform
        tagged = (rows | "1" >> beam.Map(lambda row: (0, row)), letters | "2" >> beam.Map(lambda letter: (1, letter)))
        found = tagged | beam.Flatten()
        check(found, lambda all_: valid(([each for tag, each in all_ if not tag], [each for tag, each in all_ if tag])))


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_what_documents_share_of_the_prompt_is_computed_once() -> None:
    for run in ("first", "second"):
        with pipeline() as running:
            documents = running | beam.Create([f"{run} order {number}: 2 lamps for Anna" for number in range(4)])
            found = documents | Extract(Order, MODEL, SamplingParams(max_tokens=200)).as_results()
            cached = found | beam.Map(lambda result: result.usage.cached_tokens)
            if run == "second":
                check(cached, lambda counts: len(counts) == 4 and min(counts) >= 48)


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_labels_have_probabilities() -> None:
    with pipeline() as running:
        documents = running | beam.Create(DOCUMENTS[:3])
        rows = documents | Classify(["order", "order of lamps"], MODEL)
        check(rows, lambda found: [sum(row.probabilities.values()) for row in found] == [pytest.approx(1)] * 3, "one")
        several = documents | "Several" >> Classify(["order", "complaint"], MODEL, multiple=True)
        between = [True] * 3
        check(several, lambda found: [0 < min(row.probabilities.values()) < 1 for row in found] == between, "several")

"""Extract and Classify with the embedded model, in its own process."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import apache_beam as beam
import jsonschema
import pytest

from millrace import Ask, Classify, Extract, Score, Span
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.models.client import Client, ClientOptions, Content, open_engine_client
from tests.runtime_folders import model_loaded
from tests.transforms.running import check, pipeline

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("model")]

MODEL = ModelConfig(model=EMBEDDED_MODEL, max_num_seqs=8)
DOCUMENTS = [
    {
        "id": f"{number}",
        "prompt": f'Order {number}: 2 x "lamp"\nfor Anna Larsen, 4.50 EUR each, to Oslo.',
        "shop": number,
    }
    for number in range(4)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with model_loaded(tmp_path_factory.mktemp("typed") / "rt", MODEL):
        yield


class Line(NamedTuple):
    item: Annotated[str, Span.chars]
    quantity: int


class Order(NamedTuple):
    kind: Literal["order"]
    customer: Annotated[str, Span()]
    day: Annotated[datetime.date | None, Ask("the day of the order, YYYY-MM-DD")]
    lines: list[Line]


class Generated:
    """What the engine gave."""

    by_prompt: ClassVar[dict[str, Any]] = {}


def open_recorded(options: ClientOptions) -> Client:
    """The engine's client; what it gives is remembered."""
    client = open_engine_client(options)
    submit = client.submit

    def submitted(prompt: Content, params: SamplingParams, *, request_id: str, **more: Any) -> Any:
        future = submit(prompt, params, request_id=request_id, **more)
        future.add_done_callback(lambda done: Generated.by_prompt.update({str(prompt): done}))
        return future

    client.submit = submitted  # type: ignore[method-assign]
    return client


def mean_of_free(generated: Any, text: str) -> float:
    """The mean of the log-probabilities of those tokens that wrote any of a part of the answer, and had a choice."""
    start, at, found = generated.text.index(text), 0, []
    for number, token in enumerate(generated.logprobs.tokens):
        first, at = at, at + len(token.token)
        if first < start + len(text) and at > start and first < len(generated.text) and number not in generated.forced:
            found.append(token.logprob)
    assert found
    return math.fsum(found) / len(found)


@pytest.mark.parametrize(
    ("params", "least"), [(SamplingParams(max_tokens=200), 4), (SamplingParams(max_tokens=100, temperature=1.5), 1)]
)
def test_every_row_is_valid_and_its_pieces_stand_in_the_document(params: SamplingParams, least: int) -> None:
    Generated.by_prompt.clear()
    transform = Extract(Order, MODEL, params, details=True, open_client=open_recorded).with_exception_handling()
    schema = transform.schema

    def valid(found: tuple[list[Any], list[Any]]) -> bool:
        rows, letters = found
        texts = {document["id"]: str(document["prompt"]) for document in DOCUMENTS}
        for row in rows:
            value = row.value
            given = {
                "kind": value.kind,
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
            generated = Generated.by_prompt[str(transform.prompt(texts[row.id]))].result()
            assert row.confidence == pytest.approx(mean_of_free(generated, generated.text))
            customer = json.dumps(value.customer, ensure_ascii=False)
            assert row.confidences["customer"] == pytest.approx(mean_of_free(generated, customer))
            assert row.confidences["customer"] < row.confidences["kind"] == 0.0, "there is one kind"
            assert row.confidences.keys() >= pieces.keys()
        assert {letter.error for letter in letters} <= {"ConstraintNotMet", "AnswerRejected"}
        return len(rows) + len(letters) == len(DOCUMENTS) and len(rows) >= least

    with pipeline() as running:
        rows, letters = running | beam.Create(DOCUMENTS) | transform
        tagged = (rows | "1" >> beam.Map(lambda row: (0, row)), letters | "2" >> beam.Map(lambda letter: (1, letter)))
        found = tagged | beam.Flatten()
        check(found, lambda all_: valid(([each for tag, each in all_ if not tag], [each for tag, each in all_ if tag])))


def test_what_documents_share_of_the_prompt_is_computed_once() -> None:
    for run in ("first", "second"):
        with pipeline() as running:
            documents = running | beam.Create([f"{run} order {number}: 2 lamps for Anna" for number in range(4)])
            found = documents | Extract(Order, MODEL, SamplingParams(max_tokens=200)).as_results()
            cached = found | beam.Map(lambda result: result.usage.cached_tokens)
            if run == "second":
                check(cached, lambda counts: len(counts) == 4 and min(counts) >= 48)


REVIEWS = Path(__file__).parents[3] / "examples/documents/reviews"
LABELS = {"review-01": "positive", "review-11": "negative", "review-13": "positive", "review-15": "negative"}


def first_share(logprobs: list[float]) -> float:
    """How likely the first is, given that it is one of them."""
    return 1 / math.fsum(math.exp(each - logprobs[0]) for each in logprobs)


def expected(transform: Classify, answers: list[list[str]]) -> Any:
    """Documents → (id, how likely the first answer of each list is among them), as Score has it."""

    def row(document: dict[str, str]) -> dict[str, Any]:
        prompt = str(transform.prompt(document["text"]))
        return {"id": document["id"], "prompt": prompt, "continuations": [each for some in answers for each in some]}

    def scored(found: Any) -> tuple[str, list[float]]:
        logprobs = iter([each.logprob for each in found.scores])
        return found.id, [first_share([next(logprobs) for _ in some]) for some in answers]

    return beam.Map(row) | Score(MODEL) | "Shares" >> beam.Map(scored)


def test_probabilities_of_labels_are_those_of_their_answers() -> None:
    labels = ["positive", "negative"]
    one, several = Classify(labels, MODEL), Classify(labels, MODEL, multiple=True)
    of_one = [[f'{{"label": "{label}"}}' for label in order] for order in (labels, labels[::-1])]
    of_several = [[f'{{"{label}": {held}}}' for held in ("true", "false")] for label in labels]

    def same(pairs: list[Any]) -> bool:
        return len(pairs) == 4 and all(found == [pytest.approx(each, abs=1e-4)] for _, ((each,), found) in pairs)

    with pipeline() as running:
        documents = running | beam.Create([{"id": key, "text": (REVIEWS / f"{key}.txt").read_text()} for key in LABELS])
        for name, transform, answers in (("one", one, of_one), ("several", several, of_several)):
            rows = documents | name >> transform
            found = rows | f"{name}: found" >> beam.Map(
                lambda row: (row.id, [row.probabilities[each] for each in labels])
            )
            scores = documents | f"{name}: expected" >> expected(transform, answers)
            check((found, scores) | f"{name}: both" >> beam.CoGroupByKey(), same, name)
            if transform is one:
                check(rows, lambda all_: {row.id: row.label for row in all_} == LABELS, "labels")

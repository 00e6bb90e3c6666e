"""Labels of documents, by the probabilities of whole answers."""

import json
import math
from concurrent.futures import Future
from typing import Any, ClassVar

import apache_beam as beam
import pytest

from millrace import Classification, Classify, ModelConfig, Prompt
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.models.client import Content
from millrace.transforms.models.stand_in import StandInClient, stand_in_output
from tests.transforms.running import check, pipeline

MODEL = ModelConfig(model="any", max_num_seqs=4)


def score(*logprobs: float) -> Output:
    """The answer to one continuation, whose tokens have these log-probabilities."""
    return stand_in_output(9, prompt_logprobs=Logprobs([*logprobs], [True] * len(logprobs)))


class ReadingClient(StandInClient):
    """Finds an answer likely if its words are in the document: the first token of each says nothing."""

    asked: ClassVar[list[tuple[str, list[str]]]] = []

    def score(
        self,
        prompt: Content,
        continuations: Any,
        params: SamplingParams,  # noqa: ARG002
        *,
        request_id: str,  # noqa: ARG002
    ) -> Future[Any]:
        self.asked.append((str(prompt), list(continuations)))
        document = str(prompt).rsplit("Document:\n", 1)[1]
        return self._start(lambda: [self._of(document, json.loads(each)) for each in continuations])

    def _of(self, document: str, answer: dict[str, Any]) -> Output:
        ((key, value),) = answer.items()
        said = (value if isinstance(value, str) else key) in document
        likely = said == (value is not False)
        return score(-7.0, -0.5 if likely else -3.5)


def test_each_document_gets_its_label_and_all_probabilities() -> None:
    even, odd = math.exp(-0.5), math.exp(-3.5)

    def holds(rows: list[Classification]) -> bool:
        first, second = sorted(rows, key=lambda row: row.id)
        return (
            (first.id, first.label, list(first.labels), first.columns) == ("a", "good", ["good"], '{"shop":3}')
            and first.probabilities["good"] == pytest.approx(even / (even + 2 * odd))
            and sum(first.probabilities.values()) == pytest.approx(1)
            and list(first.probabilities) == ["good", "bad", "goodness me"]
            and second.label == "bad"
        )

    documents = [{"id": "a", "prompt": "so good", "shop": 3}, Prompt(id="b", text="so bad")]
    with pipeline() as running:
        rows = (
            running
            | beam.Create(documents)
            | Classify(["good", "bad", "goodness me"], MODEL, open_client=ReadingClient)
        )
        check(rows | beam.Reshuffle(), holds)


def test_whole_answers_are_scored_over_one_prompt_and_none_begins_with_another() -> None:
    ReadingClient.asked.clear()
    transform = Classify({"good": "it is", "goodness": ""}, MODEL, open_client=ReadingClient)
    with pipeline() as running:
        _ = running | beam.Create(["so good"]) | transform
    ((prompt, answers),) = ReadingClient.asked
    assert answers == ['{"label": "good"}', '{"label": "goodness"}']
    assert prompt == transform.prompt("so good")
    assert prompt == (
        "Classify the document as JSON:\n- label: one of good, goodness (good: it is)\n\nDocument:\nso good\nJSON:"
    )


def test_several_labels_may_hold_or_none() -> None:
    ReadingClient.asked.clear()
    transform = Classify(["good", "cheap", "late"], MODEL, multiple=True, open_client=ReadingClient)
    held = math.exp(-0.5) / (math.exp(-0.5) + math.exp(-3.5))

    def holds(rows: list[tuple[int, Classification]]) -> bool:
        found = dict(rows)
        return (
            (found[0].label, list(found[0].labels)) == ("good", ["good", "cheap"])
            and (found[1].label, list(found[1].labels)) == (None, [])
            and found[0].probabilities == pytest.approx({"good": held, "cheap": held, "late": 1 - held})
        )

    with pipeline() as running:
        check(running | beam.Create([(0, "good and cheap"), (1, "well")]) | transform, holds)
    assert ReadingClient.asked[0][1][:2] == ['{"good": true}', '{"good": false}']
    assert "- good: true or false\n- cheap: true or false" in ReadingClient.asked[0][0]


LABELS: dict[str, list[str]] = {
    "one begins with another": ["good", "good ", "goodness", "go", 'good"}'],
    "unicode": ["größe", "groesse", "名前", "😀", "e\u0301", "\u00e9"],
    "escapes": ['say "a"', "back\\slash", "line\nbreak", "{label}", "\x7f"],
    "long": ["a label of as many tokens as this sentence has " * 4 + end for end in ("one", "two")],
    "two hundred": [f"label {number}" for number in range(200)],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_any_labels_have_answers_of_their_own_and_probabilities_that_sum_to_one(labels: list[str]) -> None:
    task: Any = Classify(labels, MODEL)._task
    answers = task._answers
    assert [json.loads(answer) for answer in answers] == [{"label": label} for label in labels]
    assert not any(one != other and one.startswith(other) for one in answers for other in answers)
    logprobs = [-700.0 * number for number in range(len(labels))]
    scores = [score(each) for each in logprobs]
    found = task.element(Prompt(text="x"), scores, "m", "r")
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert list(found.probabilities) == labels
    assert found.labels == labels[:1]


def test_of_several_labels_none_depends_on_the_others() -> None:
    document, probabilities = "so good", []
    for labels in (["good", "bad"], ["good", "goodness", "nice", "bad"]):
        task: Any = Classify(labels, MODEL, multiple=True)._task
        scores = [ReadingClient._of(None, document, json.loads(answer)) for answer in task._answers]  # type: ignore[arg-type]
        probabilities.append(task.element(Prompt(text=document), scores, "m", "r").probabilities)
    few, many = probabilities
    assert {label: many[label] for label in few} == few


def test_of_several_labels_the_likeliest_comes_first() -> None:
    task: Any = Classify(["late", "good", "cheap", "bad"], MODEL, multiple=True)._task
    chances = {"late": 0.6, "good": 0.9, "cheap": 0.75, "bad": 0.2}
    logprobs = [math.log(each) for chance in chances.values() for each in (chance, 1 - chance)]
    scores = [score(each) for each in logprobs]
    found = task.element(Prompt(text="x"), scores, "m", "r")
    assert found.labels == ["good", "cheap", "late"]
    assert found.probabilities == pytest.approx(chances)
    assert list(found.probabilities) == list(chances)


def test_of_labels_that_exclude_each_other_the_likeliest_holds() -> None:
    task: Any = Classify(["late", "good", "cheap"], MODEL)._task
    logprobs = [math.log(each) for each in (0.2, 0.3, 0.1)]
    scores = [score(each) for each in logprobs]
    assert task.element(Prompt(text="x"), scores, "m", "r").labels == ["good"]


def test_a_label_that_is_there_twice_is_named() -> None:
    with pytest.raises(ConfigError, match="'good' is there twice"):
        Classify(["good", "bad", "good"], MODEL)


def test_a_threshold_says_which_hold() -> None:
    with pipeline() as running:
        transform = Classify(["good"], MODEL, multiple=True, threshold=0.99, open_client=ReadingClient)
        check(running | beam.Create(["so good"]) | transform, lambda rows: [list(row.labels) for row in rows] == [[]])


def test_examples_are_shown_with_their_labels() -> None:
    one = Classify(["x", "y"], MODEL, examples=[("Anna", "y")])
    assert 'Document:\nAnna\nJSON:{"label": "y"}\n\nDocument:\n' in str(one.prompt("Bo"))
    several = Classify(["x", "y"], MODEL, multiple=True, examples=[("Anna", ["y"])])
    assert 'Document:\nAnna\nJSON:{"x": false, "y": true}\n' in str(several.prompt("Bo"))


@pytest.mark.parametrize(
    "settings",
    [
        {"labels": []},
        {"labels": "good"},
        {"labels": 5},
        {"labels": [["a"]]},
        {"labels": {}},
        {"labels": ["a", "a"]},
        {"labels": ["a", " "]},
        {"labels": ["a"]},
        {"labels": ["a"], "multiple": True, "threshold": 1.0},
        {"labels": ["a", "b"], "examples": [("x", "c")]},
        {"labels": ["a", "b"], "examples": [("x", ["a", "b"])]},
        {"labels": ["a", "b"], "examples": [("x", 5)]},
        {"labels": ["a", "b"], "examples": [("x", [["a"]])], "multiple": True},
        {"labels": ["a", "b"], "multiple": True, "threshold": 0.0},
    ],
)
def test_what_is_impossible_is_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="takes"):
        Classify(model=MODEL, **settings)


def test_failures_are_dead_letters() -> None:
    documents = [Prompt(id="chat", messages=[{"role": "user", "content": "x"}]), "so good"]
    with pipeline() as running:
        transform = Classify(["good", "bad"], MODEL, open_client=ReadingClient).with_exception_handling()
        rows, letters = running | beam.Create(documents) | transform
        check(rows, lambda found: [row.label for row in found] == ["good"], "rows")
        check(letters, lambda found: [letter.id for letter in found] == ["chat"], "letters")


def test_the_text_column_is_where_documents_are() -> None:
    with pipeline() as running:
        transform = Classify(["good", "bad"], MODEL, text_column="body", open_client=ReadingClient)
        rows = running | beam.Create([{"text": "so bad", "body": "so good"}]) | transform
        check(rows, lambda found: [(row.label, row.columns) for row in found] == [("good", '{"text":"so bad"}')])


def test_a_threshold_is_of_several_labels() -> None:
    with pytest.raises(ConfigError, match=r"threshold=0\.4 needs multiple=True"):
        Classify(["a", "b"], MODEL, threshold=0.4)

import json
from typing import Any, ClassVar, NamedTuple

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.transforms.window import TimestampedValue

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.beam_rows.row_transforms import ClassifyRows, EmbedRows, ExtractRows, GenerateRows, ScoreRows
from millrace.transforms.beam_rows.row_values import plain
from millrace.transforms.elements.beam_metrics import failures_in
from millrace.transforms.models.stand_in import StandInClient
from tests.transforms.clients import PickyClient
from tests.transforms.constrained_client import ConstrainedClient
from tests.transforms.running import check, counters, pipeline


class Question(NamedTuple):
    number: int
    question: str
    max_tokens: int | None


class Pair(NamedTuple):
    """A row that is a tuple of two, as a keyed prompt would be."""

    id: str
    prompt: str


beam.coders.registry.register_coder(Question, beam.coders.RowCoder)
beam.coders.registry.register_coder(Pair, beam.coders.RowCoder)


def rows(p: beam.Pipeline, *elements: Any) -> Any:
    return p | beam.Create(list(elements))


def test_rows_keep_their_fields_and_get_the_completion() -> None:
    with pipeline() as p:
        given = rows(p, beam.Row(number=1, question="one two"), beam.Row(number=2, question="three"))
        answered = given | GenerateRows(model="m", prompt_field="question", open_client=StandInClient)
        found = answered | beam.Map(lambda row: (row.number, row.question, row.completion.text, row.completion.model))
        check(found, lambda found: sorted(found) == [(1, "one two", "ONE TWO", "m"), (2, "three", "THREE", "m")])


def test_a_template_makes_prompts_of_fields() -> None:
    with pipeline() as p:
        given = rows(p, beam.Row(number=1, question="one"))
        answered = given | GenerateRows(template="{number} is {question}", open_client=StandInClient)
        check(answered | beam.Map(lambda row: row.completion.text), lambda found: found == ["1 IS ONE"])


def test_the_output_has_a_schema_that_the_next_transform_sees() -> None:
    p = beam.Pipeline()
    answered = rows(p, beam.Row(prompt="a")) | GenerateRows(open_client=StandInClient)
    fields = dict(answered.element_type._fields)
    assert list(fields) == ["prompt", "completion"]
    assert dict(fields["completion"]._fields)["text"] is str


def test_rows_that_are_tuples_are_rows() -> None:
    with pipeline() as p:
        given = p | beam.Create([Pair("a", "one")]).with_output_types(Pair)
        answered = given | GenerateRows(open_client=StandInClient) | beam.Map(lambda row: (row.id, row.completion.text))
        check(answered, lambda found: found == [("a", "ONE")])


def test_parameters_are_the_settings_and_on_top_of_them_the_rows_own() -> None:
    with pipeline() as p:
        given = p | beam.Create([Question(1, "a b c", None), Question(2, "a b c", 1)]).with_output_types(Question)
        answered = given | GenerateRows(prompt_field="question", sampling={"max_tokens": 2}, open_client=StandInClient)
        texts = answered | beam.Map(lambda row: (row.number, row.completion.text))
        check(texts, lambda found: sorted(found) == [(1, "A B"), (2, "A")])


def test_chat_messages_are_rows_in_rows() -> None:
    turn = beam.Row(role="user", content="hello")
    assert plain([turn]) == [{"role": "user", "content": "hello"}]
    assert plain(beam.Row(a=None, b=np.int64(3), c=np.array([1.5]))) == {"b": 3, "c": [1.5]}


def test_failed_rows_go_to_the_error_output_as_they_came() -> None:
    with pipeline() as p:
        given = rows(p, beam.Row(n=1, prompt="nan"), beam.Row(n=2, prompt=""), beam.Row(n=3, prompt="well"))
        outputs = given | GenerateRows(error_handling={"output": "failures"}, open_client=PickyClient)
        check(outputs["good"] | "n" >> beam.Map(lambda row: row.n), lambda found: found == [3])
        failed = outputs["failures"] | beam.Map(lambda row: (row.element.n, row.msg, row.stack))
        expected = [(1, "NonFiniteLogits: NaN", ""), (2, "InvalidRequest: the prompt is empty", "")]
        check(failed, lambda found: sorted(found) == expected, label="failures")
    assert failures_in(counters(p.result)) == {"NonFiniteLogits": 1, "InvalidRequest": 1}


@pytest.mark.parametrize("prompt", ["nan", ""])
def test_without_an_error_output_a_row_that_fails_fails_the_job(prompt: str) -> None:
    with pytest.raises(Exception, match=r"NaN|the prompt is empty"), pipeline() as p:
        rows(p, beam.Row(prompt=prompt)) | GenerateRows(open_client=PickyClient)


def test_rows_keep_their_timestamps() -> None:
    with pipeline() as p:
        given = rows(p, 5, 7) | beam.Map(lambda n: TimestampedValue(beam.Row(prompt=str(n)), n)).with_output_types(
            beam.typehints.row_type.RowTypeConstraint.from_fields([("prompt", str)])
        )
        answered = given | GenerateRows(open_client=StandInClient)
        stamped = answered | beam.Map(lambda row, at=beam.DoFn.TimestampParam: (row.prompt, int(at)))
        check(stamped, lambda found: sorted(found) == [("5", 5), ("7", 7)])


def test_scores_and_vectors_are_rows_too() -> None:
    with pipeline() as p:
        given = rows(p, beam.Row(prompt="a b", continuations=["c", "d e"]))
        scored = given | ScoreRows(open_client=StandInClient)
        words = scored | "w" >> beam.Map(
            lambda row: [(each.continuation, each.num_tokens) for each in row.scored.scores]
        )
        check(words, lambda found: found == [[("c", 1), ("d e", 2)]])
        embedded = given | EmbedRows(pooling="mean", open_client=StandInClient)
        sizes = embedded | "s" >> beam.Map(lambda row: len(row.embedded.embedding) > 0)
        check(sizes, lambda found: found == [True], label="vectors")


SCHEMA = {"type": "object", "required": ["day"], "properties": {"day": {"type": "string", "format": "date"}}}


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_documents_get_a_field_of_what_is_in_them(schema: Any) -> None:
    with pipeline() as p:
        given = rows(p, beam.Row(text="on the first of May", shop="Oslo"))
        found = given | ExtractRows(schema=schema, prompt_field="text", open_client=ConstrainedClient)
        days = found | "days" >> beam.Map(lambda row: (row.shop, type(row.extracted.day).__name__))
        check(days, lambda found: found == [("Oslo", "date")])
        fields = dict(found.element_type._fields)
        assert [name for name, _ in fields["extracted"]._fields] == ["day"]
        detailed = given | "with details" >> ExtractRows(
            schema=schema, prompt_field="text", details=True, open_client=ConstrainedClient
        )
        sure = detailed | "sure" >> beam.Map(lambda row: (row.extracted.confidence, list(row.extracted.confidences)))
        check(sure, lambda found: found == [(-2.0, ["day"])], label="details")


def test_documents_get_a_field_of_labels() -> None:
    with pipeline() as p:
        given = rows(p, beam.Row(prompt="well", shop="Oslo"))
        found = given | ClassifyRows(labels=["a", "bb bb"], open_client=StandInClient)
        labels = found | beam.Map(lambda row: (row.shop, row.classified.label, len(row.classified.probabilities)))
        check(labels, lambda found: found == [("Oslo", "a", 2)])


def test_examples_are_shown_and_held_to_the_type() -> None:
    class Seen(ConstrainedClient):
        prompts: ClassVar[list[str]] = []

        def submit(self, prompt: Any, params: Any, *, request_id: str, **_: Any) -> Any:
            self.prompts.append(prompt)
            return super().submit(prompt, params, request_id=request_id)

    examples = [{"text": "of May 1st", "answer": {"day": "2024-05-01"}}]
    with pipeline() as p:
        _ = rows(p, beam.Row(prompt="x")) | ExtractRows(schema=SCHEMA, examples=examples, open_client=Seen)
    assert '\nDocument:\nof May 1st\nJSON:{"day": "2024-05-01"}\n\nDocument:\nx\n' in Seen.prompts[0]
    with pytest.raises(ConfigError, match="example 'of May 1st': day"):
        ExtractRows(schema=SCHEMA, examples=[{"text": "of May 1st", "answer": {"day": "soon"}}])
    with pytest.raises(ConfigError, match="labels \\['c'\\]: takes one of a, b"):
        ClassifyRows(labels=["a", "b"], examples=[{"text": "x", "answer": "c"}])


@pytest.mark.parametrize(("sampling", "most"), [({}, 1024), ({"temperature": 1}, 1024), ({"max_tokens": 128}, 128)])
def test_extracted_answers_have_as_many_tokens_as_the_settings_say(sampling: dict[str, Any], most: int) -> None:
    assert ExtractRows(schema=SCHEMA, sampling=sampling)._transform._params.max_tokens == most


def test_an_empty_document_goes_to_the_error_output() -> None:
    with pipeline() as p:
        given = rows(p, beam.Row(prompt=""), beam.Row(prompt="well"))
        outputs = given | ExtractRows(schema=SCHEMA, error_handling={"output": "bad"}, open_client=ConstrainedClient)
        check(outputs["bad"] | "m" >> beam.Map(lambda row: row.msg), lambda found: len(found) == 1)
        check(outputs["good"] | "g" >> beam.Map(lambda row: row.prompt), lambda found: found == ["well"], label="good")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompt_feild": "x"}, "unknown setting 'prompt_feild': did you mean prompt_field?"),
        ({"sampling": {"max_token": 3}}, "sampling: unknown sampling parameter 'max_token': did you mean max_tokens?"),
        ({"engine": {"quantization": "int9"}}, "quantization='int9'"),
        ({"error_handling": {}}, "error_handling={}: takes {output: NAME}"),
        ({"error_handling": {"outptu": "x"}}, "error_handling={'outptu': 'x'}: takes {output: NAME}"),
        ({"sampling": 3}, "sampling=3: takes an object with strings as names and values as values"),
        ({"row_params": "maybe"}, "row_params='maybe'"),
        ({"template": "Sum {question"}, "a { stands without its pair"),
        ({"system": "Be brief.", "chat": False}, "needs the model's chat template"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        GenerateRows(**settings)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompt_field": "text"}, "prompt_field='text': takes a field of the rows; the rows have n, question"),
        ({}, "prompt_field is missing"),
        ({"prompt_field": "question", "output_field": "n"}, "output_field='n'"),
        ({"template": "{queston}"}, "template: names queston: takes fields of the rows; the rows have n, question"),
        ({"prompt_field": "question", "id_field": "key"}, "id_field='key'"),
    ],
)
def test_a_setting_that_does_not_suit_the_rows_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rows(beam.Pipeline(), beam.Row(n=1, question="x")) | GenerateRows(**settings)
    assert said in str(raised.value)


def test_elements_without_a_schema_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes rows with a schema"):
        rows(beam.Pipeline(), "a prompt") | GenerateRows()

"""Documents become rows of the user's own type, with what is known of each."""

import datetime
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import apache_beam as beam
import msgspec
import pydantic
import pytest
from apache_beam.options.pipeline_options import SetupOptions

from millrace import Extract, ModelConfig, Prompt, Span
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.request import FinishReason
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.models.client import Content
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.writing.output_rows import json_line
from tests.transforms.constrained_client import LOGPROB_FREE, ConstrainedClient, constrained
from tests.transforms.running import check, pipeline
from tests.transforms.typed.invoices import Frozen, Invoice, Order, Plain

MODEL = ModelConfig(model="any", max_num_seqs=4)
DOCUMENTS = [f"Invoice {number}: Anna Larsen bought {number} lamps." for number in range(8)]


class Buyer(pydantic.BaseModel):
    name: Annotated[str, Span()]
    age: int


class SeenClient(ConstrainedClient):
    """Remembers what it was asked."""

    asked: ClassVar[list[tuple[Content, SamplingParams]]] = []

    def submit(self, prompt: Content, params: SamplingParams, *, request_id: str, **_: Any) -> Any:
        self.asked.append((prompt, params))
        return super().submit(prompt, params, request_id=request_id)


def test_what_takes_the_type_takes_the_rows() -> None:
    def city(row: Order) -> str:
        return row.buyer

    def name(row: Frozen) -> str:
        return row.name

    with pipeline() as running:
        documents = running | beam.Create(DOCUMENTS)
        orders = documents | Extract(Order, MODEL, open_client=ConstrainedClient) | beam.Map(city)
        check(orders, lambda found: len(found) == 8 and all(isinstance(each, str) for each in found), "models")
        frozen = documents | "Frozen" >> Extract(Frozen, MODEL, open_client=ConstrainedClient)
        check(frozen | "name" >> beam.Map(name), lambda found: len(found) == 8, "frozen")


def test_workers_know_the_types_of_rows_before_any_transform_is_there() -> None:
    with pipeline() as running:
        documents = running | beam.Create(DOCUMENTS)
        for name in ("once", "twice"):
            _ = documents | name >> Extract(Plain, MODEL, open_client=ConstrainedClient)
        assert running.options.view_as(SetupOptions).beam_plugins == ["millrace.transforms.typed.beam_schemas"]


def test_details_have_id_columns_spans_and_how_sure_the_model_was() -> None:
    document = "Anna Larsen bought two lamps"

    def holds(rows: list[Any]) -> bool:
        (row,) = rows
        start, end = row.spans["name"]
        return (
            (row.id, json.loads(row.columns), row.model) == ("7", {"shop": "Oslo"}, "any")
            and document[start:end] == row.value.name
            and set(row.confidences) == {"name", "age"}
            and row.confidence == LOGPROB_FREE == row.confidences["name"]
        )

    with pipeline() as running:
        documents = running | beam.Create([{"id": 7, "prompt": document, "shop": "Oslo"}])
        found = documents | Extract(Buyer, MODEL, details=True, open_client=ConstrainedClient)
        check(found | beam.Reshuffle(), holds)


def test_columns_of_documents_are_no_parameters() -> None:
    with pipeline() as running:
        documents = running | beam.Create([{"text": "Anna Larsen bought two lamps", "n": 2, "stop": "soon"}])
        found = documents | Extract(Buyer, MODEL, details=True, open_client=ConstrainedClient)
        check(found, lambda rows: [json.loads(row.columns) for row in rows] == [{"n": 2, "stop": "soon"}])


@pytest.mark.parametrize(("column", "text"), [("document", "Bo"), ("body", "Cy")])
def test_the_text_column_is_where_documents_are(column: str, text: str) -> None:
    SeenClient.asked.clear()
    row = {"text": "Anna", "document": "Bo", "body": "Cy"}
    transform = Extract(Plain, MODEL, text_column=column, details=True, open_client=SeenClient)
    with pipeline() as running:
        columns = running | beam.Create([row]) | transform | beam.Map(lambda found: json.loads(found.columns))
        check(columns, lambda found: found == [{name: each for name, each in row.items() if name != column}])
    assert [prompt for prompt, _ in SeenClient.asked] == [transform.prompt(text)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "both `text` and `document` in the row: name one of them"),
        ({"text_column": "mail"}, "no `mail` in the row"),
    ],
)
def test_a_row_whose_document_is_not_known_is_a_dead_letter(settings: dict[str, Any], said: str) -> None:
    with pipeline() as running:
        transform = Extract(Plain, MODEL, open_client=ConstrainedClient, **settings).with_exception_handling()
        letters = (running | beam.Create([{"text": "Anna", "document": "Bo"}]) | transform)[1]
        check(letters, lambda found: [said in each.reason for each in found] == [True])


def test_forced_tokens_say_nothing_of_confidence() -> None:
    with pipeline() as running:
        schema = {"type": "object", "properties": {"a": {"const": "x"}}, "required": ["a"]}
        found = (
            running | beam.Create(DOCUMENTS[:1]) | Extract(schema, MODEL, details=True, open_client=ConstrainedClient)
        )
        check(found, lambda rows: [(row.confidence, row.confidences) for row in rows] == [(0.0, {"a": 0.0})])


def test_each_document_is_asked_about_under_its_own_grammar_and_the_shared_prompt() -> None:
    SeenClient.asked.clear()
    transform = Extract(Invoice, MODEL, SamplingParams(max_tokens=99), open_client=SeenClient)
    with pipeline() as running:
        _ = running | beam.Create(DOCUMENTS) | transform
    prompts = sorted(str(prompt) for prompt, _ in SeenClient.asked)
    assert prompts == sorted(str(transform.prompt(document)) for document in DOCUMENTS)
    shared = prompts[0].index(DOCUMENTS[0])
    assert len({prompt[:shared] for prompt in prompts}) == 1
    assert prompts[0][shared:] == f"{DOCUMENTS[0]}\nJSON:"
    assert len({params.constraint for _, params in SeenClient.asked if params.constraint}) == 8
    assert {(params.max_tokens, params.logprobs) for _, params in SeenClient.asked} == {(99, 0)}


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({}, 1024),
        ({"params": SamplingParams(temperature=0.5)}, 1024),
        ({"params": SamplingParams(max_tokens=128)}, 1024),
        ({"params": SamplingParams(max_tokens=127)}, 127),
        ({"params": SamplingParams(max_tokens=4000)}, 4000),
        ({"params": SamplingParams(temperature=0.5), "max_tokens": 128}, 128),
        ({"max_tokens": 7}, 7),
    ],
)
def test_answers_have_room_unless_a_number_is_given(given: dict[str, Any], most: int) -> None:
    params = Extract(Plain, MODEL, **given)._params
    assert params.max_tokens == most
    assert params.temperature == given.get("params", SamplingParams()).temperature


def test_an_impossible_number_of_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_tokens=0"):
        Extract(Plain, MODEL, max_tokens=0)


def test_the_prompt_lists_fields_questions_and_examples() -> None:
    example = {"name": "Bo", "inner": Plain("x"), "days": []}
    transform = Extract(Frozen, MODEL, examples=[("Bo was here.", example)])
    assert transform.prompt("{fields} of Anna") == (
        "Extract these fields as JSON:\n"
        "- name: text from the document\n"
        "- inner: object\n"
        "  - name: text\n"
        "  - age: integer, or null\n"
        "- days: list of date, YYYY-MM-DD\n"
        "\nDocument:\nBo was here.\n"
        'JSON:{"name": "Bo", "inner": {"name": "x", "age": null}, "days": []}\n'
        "\nDocument:\n{fields} of Anna\nJSON:"
    )
    assert "- issued: date, YYYY-MM-DD (the day the invoice was issued, YYYY-MM-DD)" in str(
        Extract(Invoice, MODEL).prompt("x")
    )


def test_the_template_may_be_the_users_own() -> None:
    chat = [{"role": "system", "content": "Fields: {fields}"}, {"role": "user", "content": "{document}"}]
    assert Extract(Plain, MODEL, template=chat).prompt("Anna") == [
        {"role": "system", "content": "Fields: - name: text\n- age: integer, or null"},
        {"role": "user", "content": "Anna"},
    ]
    with pytest.raises(ConfigError, match="template: takes text"):
        Extract(Plain, MODEL, template="no place")
    assert Extract(Plain, MODEL, template="{comment} {files} {document}").prompt("Anna") == "{comment} {files} Anna"


def test_an_example_that_is_no_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not stand in the document"):
        Extract(Frozen, MODEL, examples=[("Anna.", {"name": "Bo", "inner": Plain("x"), "days": []})])
    with pytest.raises(ConfigError, match=r"Plain has no field .aged.: did you mean age\?"):
        Extract(Plain, MODEL, examples=[("Anna.", {"name": "Anna", "aged": 3})])
    with pytest.raises(ConfigError, match="Plain has no name"):
        Extract(Plain, MODEL, examples=[("Anna.", {"age": 3})])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"currency": "GBP"}, 'currency: "GBP"'),
        ({"count": 2.5}, "count: 2.5"),
        ({"count": "7"}, 'count: "7"'),
        ({"paid": "yes"}, 'paid: "yes"'),
        ({"price": "1.5"}, 'price: "1.5"'),
        ({"codes": ["AB", 3]}, r"codes\[1\]: 3"),
        ({"sent": datetime.datetime(2024, 1, 1)}, 'sent: "2024-01-01T00:00:00"'),
        ({"who": " Larsen"}, 'who: " Larsen"'),
    ],
)
def test_an_example_is_held_to_its_type(wrong: dict[str, Any], said: str) -> None:
    Extract(Sale, MODEL, examples=[("Anna Larsen", SALE)])
    with pytest.raises(ConfigError, match=f"example 'Anna Larsen': {said} is no value of its type"):
        Extract(Sale, MODEL, examples=[("Anna Larsen", SALE | wrong)])


def test_an_example_is_held_to_its_schema() -> None:
    number = {"type": "integer", "minimum": 1}
    schema = {"type": "object", "properties": {"a-b": number, "a_b": number, "any": {"type": ["object", "null"]}}}
    found = Extract(schema, MODEL, examples=[("x", {"a_b": 1, "any": {"x": [1, 2]}})]).prompt("y")
    assert '\nJSON:{"a_b": 1, "any": {"x":[1,2]}}\n' in str(found)
    with pytest.raises(ConfigError, match="example 'x': a_b_: 0 is no value of its type"):
        Extract(schema, MODEL, examples=[("x", {"a_b": 0})])
    with pytest.raises(ConfigError, match="takes JSON"):
        Extract(schema, MODEL, examples=[("x", {"any": "no JSON"})])


@dataclass
class Sale:
    who: Annotated[str, Span()]
    currency: Literal["EUR", "USD"]
    count: int
    price: float
    paid: bool
    codes: list[str]
    sent: datetime.datetime | None


SALE = {
    "who": "Larsen",
    "currency": "EUR",
    "count": 2,
    "price": 0.1 + 0.2,
    "paid": True,
    "codes": ['a"\n\té'],
    "sent": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
}


class Strict(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def nothing_will_do(cls, _name: str) -> str:
        raise LookupError("not this one")


def test_what_fails_is_a_dead_letter() -> None:
    def told(letters: list[Any]) -> bool:
        return sorted((letter.id, letter.error) for letter in letters) == [
            ("blank", "InvalidRequest"),
            ("chat", "InvalidRequest"),
            ("constrained", "InvalidRequest"),
            ("strict", "AnswerRejected"),
        ]

    documents = [
        Prompt(id="strict", text="Anna"),
        Prompt(id="blank", text=" \n\u3000\u200b\0"),
        Prompt(id="chat", messages=[{"role": "user", "content": "x"}]),
        Prompt(id="constrained", text="x", params={"constraint": {"json": True}}),
    ]
    with pipeline() as running:
        transform = Extract(Strict, MODEL, open_client=ConstrainedClient).with_exception_handling()
        rows, letters = running | beam.Create(documents) | transform
        check(rows, lambda found: not found, "rows")
        check(letters, told, "letters")


class Words(NamedTuple):
    name: Annotated[str, Span()]


class Letters(NamedTuple):
    name: Annotated[str, Span.chars]


@pytest.mark.parametrize("rows", [Words, Letters])
def test_the_letter_of_a_document_that_is_too_long_for_spans_says_how_long_it_may_be(rows: Any) -> None:
    long = "x y " * 105_000

    def told(letters: list[Any]) -> bool:
        (letter,) = letters
        said = (
            "the document of 420000 characters is too long for spans: their grammar takes about 419000 such characters"
        )
        return (letter.id, letter.error) == ("long", "PromptTooLong") and re.match(said, letter.reason) is not None

    with pipeline() as running:
        transform = Extract(rows, MODEL, open_client=StandInClient).with_exception_handling()
        check((running | beam.Create([Prompt(id="long", text=long)]) | transform)[1], told)


class Checked(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def nothing_will_do(cls, _name: str) -> str:
        raise ValueError("not this one")


def test_the_letter_of_an_answer_that_is_not_taken_has_the_answer_and_what_is_wrong_with_which_field() -> None:
    def told(letters: list[Any]) -> bool:
        (letter,) = letters
        line = json.loads(json_line(letter))
        reason = "Checked does not take the answer: name: Value error, not this one"
        found = (letter.reason, [*json.loads(line["answer"])], line["row"])
        return found == (reason, ["name"], "Anna")

    with pipeline() as running:
        transform = Extract(Checked, MODEL, open_client=ConstrainedClient).with_exception_handling()
        documents = beam.Create([Prompt(id="a.txt", source="a.txt", text="Anna")])
        check((running | documents | transform)[1], told)


def test_without_handling_a_failure_fails_the_job() -> None:
    with pytest.raises(Exception, match="not this one"), pipeline() as running:
        _ = running | beam.Create(["Anna"]) | Extract(Strict, MODEL, open_client=ConstrainedClient)


class CutClient(ConstrainedClient):
    """Answers end a character before their end."""

    def submit(self, prompt: Content, params: SamplingParams, *, request_id: str, **_: Any) -> Any:  # noqa: ARG002
        whole = constrained(str(prompt), params)
        return self._start(lambda: msgspec.structs.replace(whole, text=whole.text[:-1]))


class ShortClient(ConstrainedClient):
    """Answers that a client without constraints has cut at `max_tokens`."""

    def submit(self, prompt: Content, params: SamplingParams, *, request_id: str, **_: Any) -> Any:  # noqa: ARG002
        whole = constrained(str(prompt), params)
        return self._start(lambda: msgspec.structs.replace(whole, finish_reason=FinishReason.LENGTH))


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (StandInClient, "the answer has 'EXTRACT .* in the place of '{'"),
        (CutClient, "the answer"),
        (ShortClient, "the answer was cut after [0-9]+ tokens: max_tokens"),
    ],
)
def test_an_answer_that_is_no_json_or_is_cut_off_is_no_row(client: Any, said: str) -> None:
    def told(letters: list[Any]) -> bool:
        return [letter.error for letter in letters] == ["AnswerRejected"] and bool(re.match(said, letters[0].reason))

    with pipeline() as running:
        transform = Extract(Plain, MODEL, open_client=client).with_exception_handling()
        check((running | beam.Create(["Anna"]) | transform)[1], told)


@pytest.mark.parametrize("params", [SamplingParams(n=2), SamplingParams(constraint=Constraint(json=True))])
def test_parameters_that_are_its_own_are_refused(params: SamplingParams) -> None:
    with pytest.raises(ConfigError, match=r"Extract"):
        Extract(Plain, MODEL, params)

import json
from typing import Any

import apache_beam as beam
import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.request import FinishReason
from millrace.transforms.elements.beam_metrics import failures_in, tallied
from millrace.transforms.elements.completions import Completion, DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.streams.broker_messages import BrokerMessage, ReadMessages, outgoing, read_message, too_large
from tests.transforms.running import check, pipeline

AT = "kafka:topic/0@7"


def read(data: Any, attributes: dict[str, str] | None = None, *, text: bool = False, **shape: Any) -> Any:
    payload = data if isinstance(data, bytes) else json.dumps(data).encode()
    return read_message(BrokerMessage(payload, attributes or {}, AT), RowShape(**shape), 1000, text=text)


def test_a_payload_is_a_row_known_by_its_place() -> None:
    row = read({"prompt": "hello", "max_tokens": 3, "customer": 17})
    assert (row.id, row.source, row.text) == (AT, AT, "hello")
    assert (row.params, row.columns) == ({"max_tokens": 3}, {"customer": 17})
    assert read("hello").text == read(b"hello", text=True).text == "hello"


def test_attributes_complete_the_row() -> None:
    row = read({"prompt": "hello"}, {"id": "a", "max_tokens": "3", "stop": "x", "customer": "17"})
    assert (row.id, row.source) == ("a", AT)
    assert row.params == {"max_tokens": 3, "stop": "x"}
    assert row.columns == {"customer": "17"}


def test_what_the_payload_says_goes_before_its_attributes() -> None:
    row = read({"id": "own", "prompt": "hello", "max_tokens": 3}, {"id": "a", "max_tokens": "9", "prompt": "other"})
    assert (row.id, row.text, row.params, row.columns) == ("own", "hello", {"max_tokens": 3}, {})


def test_the_column_of_ids_may_be_an_attribute() -> None:
    assert read("hello", {"key": "k", "id": "a"}, id_column="key").id == "k"


def test_attributes_are_no_parameters_where_columns_are_none() -> None:
    row = read("hello", {"max_tokens": "3"}, row_params=False)
    assert (row.params, row.columns) == ({}, {"max_tokens": "3"})


@pytest.mark.parametrize(
    ("data", "attributes", "error", "reason"),
    [
        (b"{", {}, "UnreadableRow", "not JSON"),
        (b"", {}, "UnreadableRow", "the message is empty"),
        (b"\xff", {}, "UnreadableRow", "not UTF-8"),
        (b'"' + b"x" * 2000 + b'"', {}, "UnreadableRow", "longer than 1000 bytes"),
        ({"text": "hello"}, {}, "InvalidRequest", "no `prompt` or `messages`"),
        ({"prompt": "hello"}, {"max_tokens": "0"}, "InvalidRequest", "max_tokens=0"),
    ],
)
def test_a_message_that_is_no_prompt_is_a_dead_letter(
    data: Any, attributes: dict[str, str], error: str, reason: str
) -> None:
    letter = read(data, attributes | {"id": "a"})
    assert isinstance(letter, DeadLetter)
    assert (letter.id, letter.source, letter.error) == ("a", AT, error)
    assert reason in letter.reason


def test_results_are_sent_under_their_ids() -> None:
    message = outgoing(Completion(id="a", text="yes", finish_reason=FinishReason.STOP))
    assert (message.key, message.attributes) == ("a", {"id": "a", "kind": "result"})
    assert json.loads(message.data)["text"] == "yes"
    letter = outgoing(DeadLetter(id="b", error="E", reason="why", row={"x": 1}))
    assert letter.attributes == {"id": "b", "kind": "dead_letter"}
    assert json.loads(letter.data)["row"] == {"x": 1}


def test_a_result_that_is_too_large_becomes_a_small_letter() -> None:
    with tallied() as counts:
        letter = too_large("a", 5100)
    assert (letter.id, letter.error) == ("a", "MessageTooLarge")
    assert len(outgoing(letter).data) < 300
    assert (counts["failures"], failures_in(counts)) == (1, {"MessageTooLarge": 1})


class Given(ReadMessages):
    """A broker that has these messages."""

    def messages(self, root: Any) -> Any:
        given = [BrokerMessage(b'"hello"', {"id": "a"}, "p@1"), BrokerMessage(b"{", {}, "p@2")]
        return root | beam.Create(given)


def test_readers_give_prompts_and_dead_letters() -> None:
    with pipeline() as running:
        prompts, letters = running | Given().with_exception_handling()
        hello = Prompt(id="a", text="hello", source="p@1", original='"hello"')
        check(prompts, lambda found: found == [hello], "prompts")
        check(letters, lambda found: [each.id for each in found] == ["p@2"], "letters")


def test_without_exception_handling_a_bad_message_fails_the_job() -> None:
    with pytest.raises(Exception, match="p@2: not JSON"), pipeline() as running:
        running | Given()


def test_payloads_have_one_of_two_formats() -> None:
    with pytest.raises(ConfigError, match="input_format='parquet': messages are jsonl or text"):
        Given(input_format="parquet")

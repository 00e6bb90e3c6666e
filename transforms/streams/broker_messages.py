"""A broker's messages: an incoming message is a row, an outgoing message is a result. Knows no broker.

The DoFns that receive or send them have a connection, which is opened once in a process.

Pub/Sub's attributes and Kafka's headers are both called attributes here. The attributes of an incoming message complete
its row: `id` is the row's id, names of sampling parameters are its parameters, all others become columns. The payload
takes precedence. An outgoing message is a line of output_rows.py with the row's id, and with the attributes `id` and
`kind` (`result` or `dead_letter`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple, Self, TypeVar, Unpack

import apache_beam as beam
import msgspec
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.utils.shared import Shared

from millrace.model_manager.wire.errors import ConfigError, RequestError

from ..elements.beam_metrics import Count, Failures
from ..elements.completions import Completion, DeadLetter, Prompt
from ..elements.prompt_rows import RowShape, take_id, take_params
from ..elements.task_results import Result
from ..reading.prompt_reader import PromptReader, ReaderSettings, RowsDoFn
from ..reading.read_csv import typed_cells
from ..reading.row_letters import message_row
from ..writing.output_rows import json_line
from .last_steps import end_quietly

AddressT = TypeVar("AddressT")
ConnectionT = TypeVar("ConnectionT")
FORMATS = ("jsonl", "text")
"""Formats of a payload: a JSON value, or a prompt."""
_FAILURES = Count("failures")
_TOO_LARGE = "MessageTooLarge"
"""The class of its dead letter's error."""
_CONTENT = ("prompt", "messages")
"""Columns that only a payload has."""


class BrokerMessage(msgspec.Struct, frozen=True):
    """One message as it came."""

    data: bytes
    attributes: dict[str, str]
    position: str
    """The broker's name for it, the same however often it is delivered; the id of a row without one."""


Element = Completion | Result | DeadLetter
"""What becomes a message."""


class Outgoing(NamedTuple):
    """One message to be sent."""

    key: str
    """The row's id."""
    data: bytes
    attributes: dict[str, str]


class MessageSettings(ReaderSettings, total=False):
    """Keyword arguments of every reader of messages."""

    drain: str | None


class ReadMessages(PromptReader):
    """Prompts from a broker; a message is a row."""

    def __init__(self, *, drain: str | None = None, **rows: Unpack[ReaderSettings]) -> None:
        """`rows`: as PromptReader takes them; `input_format` is the payloads' format: jsonl, the default, or text.

        `drain`: the path of a file; workers that find it on their machine read no more, and the job ends when what was
        read is done.
        """
        super().__init__(**rows)
        if self._format not in (None, *FORMATS):
            raise ConfigError(f"input_format={self._format!r}: messages are {' or '.join(FORMATS)}")
        self._drain = drain

    def messages(self, root: Any) -> Any:
        """The Messages, unbounded, each at the time that its broker has for it."""
        raise NotImplementedError(type(self).__name__)

    def expand(self, root: Any) -> Any:
        parse = ParseMessages(self._shape, self._max_row_bytes, text=self._format == "text", strict=self._strict)
        return self._outputs(*self._rows("Parse", self.messages(root), parse))


class ParseMessages(RowsDoFn):
    """Parses each message as a prompt."""

    def __init__(self, shape: RowShape, max_row_bytes: int, *, text: bool, strict: bool) -> None:
        """`text`: whether payloads are text, and not JSON."""
        super().__init__(shape, max_row_bytes, strict=strict)
        self._text = text

    def process(self, message: BrokerMessage) -> Iterator[Any]:
        yield from self._sorted([read_message(message, self._shape, self._max_row_bytes, text=self._text)])


class WriteMessages(beam.PTransform):
    """Results and dead letters as messages of a topic, each as it comes.

    A bundle that the runner repeats sends again, under the same ids. A result larger than the broker takes is sent as
    the dead letter that says so; see `with_exception_handling`.
    """

    def __init__(self, topic: Any) -> None:
        """`topic`: the address of a topic."""
        super().__init__()
        self.topic = topic
        self._gives_letters = False

    def with_exception_handling(self) -> Self:
        """Give the dead letters of results that are too large, rather than send them to the topic of the results."""
        self._gives_letters = True
        return self

    def _sent(self, elements: Any, send: beam.DoFn) -> Any:
        """Send them; returns the dead letters, or an empty collection."""
        given = elements | "Send" >> beam.ParDo(send).with_output_types(DeadLetter)
        if not self._gives_letters:
            end_quietly(given)
        return given

    def display_data(self) -> dict[str, Any]:
        return {"topic": DisplayDataItem(str(self.topic), label="Topic")}


class ConnectedDoFn(beam.DoFn, Generic[AddressT, ConnectionT]):
    """A DoFn whose copies in one process share a connection."""

    def __init__(self, address: AddressT) -> None:
        """`address`: the source, or the topic to write to."""
        self._address = address
        self._shared = Shared()

    def setup(self) -> None:
        self._connection: ConnectionT = self._shared.acquire(self.connect)

    def connect(self) -> ConnectionT:
        """Open this process's connection."""
        raise NotImplementedError(type(self).__name__)


class SendDoFn(ConnectedDoFn[AddressT, ConnectionT]):
    """Elements → dead letters for elements that are too large. A bundle ends when the broker has everything."""

    def __init__(self, topic: AddressT, *, gives_letters: bool) -> None:
        """`gives_letters`: give dead letters instead of sending them."""
        super().__init__(topic)
        self._gives_letters = gives_letters


def read_message(message: BrokerMessage, shape: RowShape, limit: int, *, text: bool = False) -> Prompt | DeadLetter:
    """The row of a message, completed by its attributes."""
    row = message_row(message.data, "text" if text else "jsonl", shape, message.position, limit)
    if not message.attributes:
        return row
    if isinstance(row, DeadLetter):
        return msgspec.structs.replace(row, id=_own_id(row, message.attributes, shape))
    try:
        return completed(row, message.attributes, shape)
    except RequestError as error:
        return msgspec.structs.replace(DeadLetter.of(row, error.info()), id=_own_id(row, message.attributes, shape))


def completed(prompt: Prompt, attributes: Mapping[str, str], shape: RowShape) -> Prompt:
    """The prompt, with the id, parameters and columns that only its attributes have. Raises InvalidRequest."""
    own = {name: value for name, value in attributes.items() if name not in (*_CONTENT, shape.prompt_column)}
    rest = typed_cells(own, shape)
    take_id(rest, shape)
    params = take_params(rest) if shape.row_params else {}
    identity = _own_id(prompt, attributes, shape)
    return msgspec.structs.replace(prompt, id=identity, params=params | prompt.params, columns=rest | prompt.columns)


def _own_id(row: Prompt | DeadLetter, attributes: Mapping[str, str], shape: RowShape) -> str:
    """The row's id; or the attributes' id where the row has only its position."""
    return take_id(dict(attributes), shape) or row.id if row.id == row.source else row.id


def outgoing(element: Element) -> Outgoing:
    """The message of a result or a dead letter."""
    kind = "dead_letter" if isinstance(element, DeadLetter) else "result"
    return Outgoing(element.id, json_line(element).rstrip(b"\n"), {"id": element.id, "kind": kind})


def too_large(identity: str, size: int) -> DeadLetter:
    """The dead letter that is sent instead of a result that is too large for the broker.

    Called in a bundle: counts a failure.
    """
    _FAILURES.inc()
    Failures().count(_TOO_LARGE)
    reason = f"its {size:,} bytes are more than the broker takes"
    return DeadLetter(id=identity, error=_TOO_LARGE, reason=reason)

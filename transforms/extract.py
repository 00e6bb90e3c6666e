"""Extract: documents → rows of the user's own type, always.

invoices = documents | Extract(Invoice, "org/model")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import msgspec

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.constraint import MOST_CHARACTERS, Constraint
from millrace.model_manager.wire.errors import AnswerRejected, ConfigError, InvalidRequest, PromptTooLong, counted
from millrace.model_manager.wire.request import FinishReason, Output, RequestTask
from millrace.model_manager.wire.sampling import SamplingParams

from .elements.completions import Prompt, content_id
from .elements.task_results import Extracted, spent
from .models.client import Client
from .requests.model_transform import ModelSettings
from .requests.row_output import RowOutputTransform
from .tasks import MAX_TOKENS
from .typed.alignment import Confidence, token_ranges
from .typed.answer_values import read
from .typed.beam_schemas import element_type
from .typed.checking import check_answer, check_supported
from .typed.describe import record_of
from .typed.details import Details
from .typed.document_template import DEFAULT_TEMPLATE, MessageContent, Prompts, Template
from .typed.documents import document_of, rows_of_documents
from .typed.examples import check_fields, example_answer
from .typed.instance_check import check_held
from .typed.json_schemas import schema_of
from .typed.key_paths import renamed_keys
from .typed.record_grammar import RecordGrammar
from .typed.shapes import Record, Schema
from .typed.values import decoded, value_of

_CUT_SHORT = (
    "the answer was cut after {}: max_tokens, or what the model's positions leave behind the prompt, is too "
    "little for it"
)


class Extract(RowOutputTransform):
    """A row of the type for each document; keyed input `(key, document)` comes back keyed.

    The type is a dataclass, a NamedTuple, a pydantic model, or a JSON Schema: a dict, or a file of one, whose rows are
    then a NamedTuple. A document is text, a Prompt of text, or a mapping with it as `text`, `document` or `prompt`,
    and further columns. What is in the rows, docs/how-to/typed-answers.md says.

    Otherwise as Generate, failures too: `with_exception_handling()` gives `(rows, dead_letters)`.
    """

    def __init__(
        self,
        rows: type | Schema | str | Path,
        model: str | ModelConfig,
        params: SamplingParams | None = None,
        *,
        examples: Sequence[tuple[str, Any]] = (),
        template: Template = DEFAULT_TEMPLATE,
        max_tokens: int | None = None,
        text_column: str | None = None,
        details: bool = False,
        stateful: bool = False,
        **settings: Unpack[ModelSettings],
    ) -> None:
        """`rows`: A dataclass, a NamedTuple, a pydantic model, or a JSON Schema: a mapping or a file.

        `examples`: Documents with their rows: instances of the type, or mappings.

        `template`: The prompt, with places for {fields}, {examples} and {document}: text, or chat messages.

        `max_tokens` is for one answer; by default the one in `params`, or 1024 where `params` has its default, 128.
        `text_column` is where mappings have the document; by default `text`, `document` or `prompt`.

        `details`: Give each row's id, value, confidence, spans and more, instead of the value alone.

        `stateful`: Keep requests in flight in the runner's state. For long generations on streams; not for a broker's
        messages on Prism (docs: Streams).

        `settings`: as millrace.transforms.requests.model_transform.ModelSettings explains them.
        """
        self._record = record_of(rows)
        check_supported(self._record)
        self._prompts = Prompts(self._record, [_example(self._record, *each) for each in examples], template)
        params = _with_room(params or SamplingParams(), max_tokens)
        _check(params, ConfigError)
        self._details = Details(self._record) if details else None
        task = _Extracting(self._record, self._prompts, text_column)
        super().__init__(task, model, params, settings, stateful=stateful)

    @property
    def schema(self) -> Schema:
        """The JSON Schema that every answer is valid under."""
        return schema_of(self._record)

    def prompt(self, document: str) -> MessageContent:
        """What the model is told about a document."""
        return self._prompts.of(document)

    @property
    def row_type(self) -> Any:
        return element_type(self._record) if self._details is None else self._details.element_type

    @property
    def make_row(self) -> Callable[[Extracted], Any]:
        return partial(_row, self._record, self._details)


class _Extracting:
    result = Extracted
    name = "extract"
    request: RequestTask = "generate"

    def __init__(self, record: Record, prompts: Prompts, text_column: str | None) -> None:
        self.rows = rows_of_documents(text_column)
        self._record = record
        self._keys = renamed_keys(record)
        self._prompts = prompts
        self._grammar = RecordGrammar(record)
        self._digest = content_id([self._grammar.of(""), prompts.of("")])

    def id_parts(self, prompt: Prompt) -> tuple[Any, ...]:
        document_of(prompt)
        return "extract", self._digest

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        _check(params, InvalidRequest)
        document = document_of(prompt)
        grammar = self._grammar.of(document)
        if len(grammar) > MOST_CHARACTERS:
            raise PromptTooLong(_too_long(document, grammar))
        asked = msgspec.structs.replace(params, constraint=Constraint(grammar=grammar), logprobs=params.logprobs or 0)
        return client.submit(self._prompts.of(document), asked, request_id=request_id)

    def element(self, prompt: Prompt, result: Output, model: str, revision: str) -> Extracted:
        if result.finish_reason is FinishReason.LENGTH:
            raise AnswerRejected(_CUT_SHORT.format(counted(len(result.token_ids), "token")))
        reading = read(self._record, result.text, document_of(prompt))
        check_held(self._record, value_of(self._record, decoded(reading.json)))  # a class's own checks
        if result.logprobs is None:
            raise AnswerRejected("the answer has no log-probabilities, though they were asked for")
        tokens = result.logprobs.tokens
        ranges = token_ranges(result.text, [each.token for each in tokens])
        confidence = Confidence(ranges, [each.logprob for each in tokens], result.forced)
        return Extracted(
            id=prompt.id,
            answer=reading.json,
            confidence=confidence.over((0, len(result.text))),
            confidences={path: confidence.over(where) for path, where in reading.ranges.items() if path},
            spans=reading.spans,
            keys=self._keys,
            model=model,
            revision=revision,
            columns=prompt.columns,
            **spent([result]),
        )


def _example(record: Record, document: str, value: Any) -> tuple[str, str]:
    check_fields(record, value, record.name)
    answer = example_answer(record, value)
    try:
        reading = read(record, answer, document)
        check_answer(record, document, answer, reading.ranges)
        value_of(record, decoded(reading.json))
    except (AnswerRejected, ConfigError, ValueError) as error:
        raise ConfigError(f"example {document[:40]!r}: {error}") from None
    return document, answer


def _too_long(document: str, grammar: str) -> str:
    about = len(document) * MOST_CHARACTERS // len(grammar) // 1000 * 1000
    return (
        f"the document of {len(document)} characters is too long for spans: their grammar takes about {about} such "
        f"characters (it has {len(grammar)}, of at most {MOST_CHARACTERS})"
    )


def _with_room(params: SamplingParams, max_tokens: int | None) -> SamplingParams:
    if max_tokens is None:
        max_tokens = MAX_TOKENS if params.max_tokens == SamplingParams().max_tokens else params.max_tokens
    try:
        return params.updated({"max_tokens": max_tokens})
    except InvalidRequest as error:
        raise ConfigError(str(error)) from None


def _check(params: SamplingParams, error: type[Exception]) -> None:
    if params.constraint is not None:
        raise error("constraint: Extract makes its own")
    if params.n != 1:
        raise error(f"n={params.n}: Extract takes 1")


def _row(record: Record, details: Details | None, found: Extracted) -> Any:
    value = value_of(record, decoded(found.answer))
    return value if details is None else details.row(value, found)

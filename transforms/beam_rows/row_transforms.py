"""The transforms for rows with a schema: what Beam's YAML and its other languages have instead of Prompts.

    rows {question, …}  ─►  the same rows with one more field: completion {text, finish_reason, …}

A row that fails fails the job, unless `error_handling` names an output for such rows, which then has them in the form
of YAML's own transforms: {element, msg, stack}.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast, get_type_hints

import apache_beam as beam
import msgspec
from apache_beam.typehints import typehints
from apache_beam.typehints.row_type import RowTypeConstraint
from msgspec.structs import fields

from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.conversion import converted
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest, RequestError
from millrace.model_manager.wire.sampling import SamplingParams

from ..classify import Classify
from ..elements.beam_metrics import Count, Failures
from ..elements.completions import DEAD_LETTERS, DeadLetter, Prompt
from ..elements.prompt_rows import SAMPLING_NAMES, RowShape, parse_row
from ..embed import Embed
from ..extract import Extract
from ..generate import Generate
from ..models.client import Opener, open_engine_client
from ..requests.model_transform import ModelTransform
from ..requests.row_output import RowOutputTransform
from ..score import Score
from ..tasks import (
    MAX_TOKENS,
    ClassifySettings,
    EmbedSettings,
    ExtractSettings,
    GenerateSettings,
    ScoreSettings,
    TaskSettings,
)
from .row_values import COMPLETION, EMBEDDED, SCORED, completion_row, embedded_row, plain, row_type, scored_row


class CommonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of all transforms of rows: plain values, or rows of them."""

    model: str = EMBEDDED_MODEL
    """A hub name, a folder, gs://bucket/folder, or the embedded model's name."""
    prompt_field: str | None = None
    """The rows' field of prompts: text, chat messages or token ids; by default `prompt`, else `messages`."""
    id_field: str | None = None
    """The field that names the requests; by default `id` or `custom_id` if there is one, else they go by content."""
    output_field: str = ""
    """The new field."""
    sampling: dict[str, Any] = {}
    """Sampling parameters of all rows, with the names in docs/reference/sampling.md."""
    row_params: bool = True
    """Read sampling parameters of a row from fields with their names."""
    chat: bool | None = None
    """Put text through the model's chat template. Default: if the model has one."""
    engine: dict[str, Any] = {}
    """Settings of ModelConfig."""
    manager: dict[str, Any] = {}
    """Settings of ManagerConfig."""
    error_handling: dict[str, str] | None = None
    """Output of failed rows, {output: NAME}. Default: a failed row fails the job."""

    def __post_init__(self) -> None:
        if self.error_handling is not None and list(self.error_handling) != ["output"]:
            raise ConfigError(f"error_handling={self.error_handling}: takes {{output: NAME}}")

    @property
    def error_output(self) -> str | None:
        """The output of rows that fail, if there is one."""
        return self.error_handling["output"] if self.error_handling else None

    @property
    def shape(self) -> RowShape:
        """The meaning of the rows' fields."""
        return RowShape(
            prompt_column=self.prompt_field,
            id_column=self.id_field,
            row_params=self.row_params,
            template=getattr(self, "template", None),
        )

    def of_transform(self) -> dict[str, Any]:
        """What the transforms take by these names."""
        return {
            "model": ModelConfig.parse({**self.engine, "model": self.model}),
            "params": _sampling(self.sampling),
            "manager": ManagerConfig.parse(self.manager),
            "chat": self.chat,
            "fail_fast": self.error_output is None,
        }


class ShownExample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document and its answer: a mapping of fields, or a label or several."""

    text: str
    answer: Any


class DocumentSettings(CommonSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of transforms whose prompts are documents."""

    row_params: bool = False
    examples: list[ShownExample] = []

    @property
    def shape(self) -> RowShape:
        return RowShape(
            prompt_column=self.prompt_field or "prompt",
            documents=True,
            id_column=self.id_field,
            row_params=self.row_params,
        )


class SchemaSettings(DocumentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ExtractRows, whose type is a JSON Schema."""

    schema: dict[str, Any] | str
    """A JSON Schema, its text, or a file of it."""

    @property
    def rows(self) -> dict[str, Any] | str:
        """What Extract takes as the type."""
        text = self.schema if isinstance(self.schema, str) else ""
        if not text.lstrip().startswith("{"):
            return self.schema
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError(f"schema={text[:40]!r}: takes a JSON Schema: {error}") from None

    def of_transform(self) -> dict[str, Any]:
        params = _sampling({"max_tokens": MAX_TOKENS} | self.sampling)
        return super().of_transform() | {"params": params, "max_tokens": params.max_tokens}


def _with(
    task: type[TaskSettings], base: type[CommonSettings], leave_out: Collection[str] = (), **more: tuple[Any, Any]
) -> type[CommonSettings]:
    """`base` with the task's own settings, and `more`: fields of the same or another name, each a type and default."""
    types = get_type_hints(task)
    taken = [field for field in fields(task) if field.name not in (*leave_out, *more, *base.__struct_fields__)]
    own = {field.name: (types[field.name], field.default) for field in taken} | more
    made = msgspec.defstruct(
        f"{task.__name__}OfRows",
        [(name, kind, msgspec.field(default=default)) for name, (kind, default) in own.items()],
        bases=(base,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast(type[CommonSettings], made)


class _RowTransform(beam.PTransform):
    """Takes CommonSettings by name, and the settings of its task (transforms/tasks.py)."""

    _settings_type: type[CommonSettings]
    _task: type[TaskSettings]
    _transform_type: Callable[..., ModelTransform]
    _result: tuple[RowTypeConstraint, Callable[[Any], beam.Row]] | None = None
    """The type of the new field, and a result as one; by default the rows of a RowOutputTransform."""

    def __init__(self, *, open_client: Opener = open_engine_client, **settings: Any) -> None:
        super().__init__()
        self._settings: Any = converted(plain(settings), self._settings_type, ConfigError, what="setting")
        transform = self._transform_type(
            **self._settings.of_transform(), **self._of_task(self._settings), open_client=open_client
        )
        self._transform = transform
        if self._result is None:
            assert isinstance(transform, RowOutputTransform)
            self._result = row_type(transform.row_type), _as_it_is
        self._result_type, self._as_row = self._result

    def _of_task(self, settings: Any) -> dict[str, Any]:
        """What the transform takes by the names of its task's settings."""
        own = {name: getattr(settings, name) for name in self._task.__struct_fields__ if hasattr(settings, name)}
        return own | ({"examples": [(each.text, each.answer) for each in own["examples"]]} if "examples" in own else {})

    @property
    def _further_fields(self) -> tuple[str, ...]:
        """Fields that are read beside the fields of prompts."""
        return ()

    def expand(self, rows: Any) -> Any:
        given = row_type(rows.element_type)
        names = [name for name, _ in given._fields]
        prompts, unusable = self._prompts(rows, given, names)
        results, failed = prompts | self._transform.with_exception_handling()
        answered = results | "Answered" >> beam.Map(
            _answered, names, self._settings.output_field, self._as_row
        ).with_output_types(
            RowTypeConstraint.from_fields([*given._fields, (self._settings.output_field, self._result_type)])
        )
        if self._settings.error_output is None:
            return answered
        error_type = RowTypeConstraint.from_fields([("element", given), ("msg", str), ("stack", str)])
        told = (unusable, failed) | beam.Flatten() | "Failed" >> beam.Map(_failed).with_output_types(error_type)
        return {"good": answered, self._settings.error_output: told}

    def _prompts(self, rows: Any, given: RowTypeConstraint, names: list[str]) -> tuple[Any, Any]:
        as_prompt = _AsPrompt(self._read_fields(names), self._settings)
        outputs = rows | "Prompts" >> beam.ParDo(as_prompt).with_outputs(DEAD_LETTERS, main="prompts")
        prompts, unusable = outputs.prompts, outputs[DEAD_LETTERS]
        prompts.element_type = typehints.KV[given, Prompt]
        unusable.element_type = typehints.KV[given, DeadLetter]
        return prompts, unusable

    def _read_fields(self, names: list[str]) -> list[str]:
        """The fields of the rows that prompts are made of."""
        shape, has = self._settings.shape, f"the rows have {', '.join(names) or 'no fields'}"
        named = {"prompt_field": self._settings.prompt_field, "id_field": shape.id_column}
        for setting, field in named.items():
            if field is not None and field not in names:
                raise ConfigError(f"{setting}={field!r}: takes a field of the rows; {has}")
        if shape.template is not None and (missing := set(shape.prompt_columns) - set(names)):
            raise ConfigError(f"template: names {', '.join(sorted(missing))}: takes fields of the rows; {has}")
        if not set(shape.prompt_columns) & set(names):
            raise ConfigError(f"prompt_field is missing: takes the field that holds the prompts; {has}")
        if self._settings.output_field in names:
            raise ConfigError(
                f"output_field={self._settings.output_field!r}: takes a name that is new to the rows; {has}"
            )
        read = set(shape.prompt_columns)
        read |= {shape.id_column} if shape.id_column else {"id", "custom_id"}
        read |= {*self._further_fields, *(SAMPLING_NAMES if shape.row_params else ())}
        return [name for name in names if name in read]


class GenerateRows(_RowTransform):
    """Generate: rows with a field of prompts get a field `completion`."""

    _task, _transform_type, _result = GenerateSettings, Generate, (COMPLETION, completion_row)
    _settings_type = _with(GenerateSettings, CommonSettings, ["stateful"], output_field=(str, "completion"))


class ScoreRows(_RowTransform):
    """Score: rows with prompts and continuations get a field `scored`."""

    _task, _transform_type, _result = ScoreSettings, Score, (SCORED, scored_row)
    _settings_type = _with(
        ScoreSettings,
        CommonSettings,
        ["continuations_column"],
        output_field=(str, "scored"),
        continuations_field=(str, "continuations"),
    )

    @property
    def _further_fields(self) -> tuple[str, ...]:
        return (str(self._settings.continuations_field),)

    def _of_task(self, settings: Any) -> dict[str, Any]:
        return {"continuations_column": settings.continuations_field}


class EmbedRows(_RowTransform):
    """Embed: rows with a field of prompts get a field `embedded`."""

    _task, _transform_type, _result = EmbedSettings, Embed, (EMBEDDED, embedded_row)
    _settings_type = _with(EmbedSettings, CommonSettings, output_field=(str, "embedded"), chat=(bool | None, False))


class ExtractRows(_RowTransform):
    """Extract: rows with a field of documents get a field `extracted`."""

    _task, _transform_type = ExtractSettings, Extract
    _settings_type = _with(ExtractSettings, SchemaSettings, ["rows", "stateful"], output_field=(str, "extracted"))


class ClassifyRows(_RowTransform):
    """Classify: rows with a field of documents get a field `classified`."""

    _task, _transform_type = ClassifySettings, Classify
    _settings_type = _with(ClassifySettings, DocumentSettings, output_field=(str, "classified"))


def _as_it_is(row: Any) -> Any:
    return row


class _AsPrompt(beam.DoFn):
    """Rows → (row, prompt)."""

    def __init__(self, fields: list[str], settings: CommonSettings) -> None:
        self._fields = fields
        self._shape = settings.shape
        self._strict = settings.error_output is None
        self._unreadable = Count("unreadable_rows")
        self._failures = Failures()

    def process(self, row: Any) -> Iterator[Any]:
        try:
            given = {name: plain(getattr(row, name)) for name in self._fields}
            yield row, parse_row(given, self._shape, position="")
        except RequestError as error:
            self._unreadable.inc()
            self._failures.count(type(error).__name__)
            if self._strict:
                raise
            letter = DeadLetter(id="", error=type(error).__name__, reason=str(error))
            yield beam.pvalue.TaggedOutput(DEAD_LETTERS, (row, letter))


def _answered(pair: tuple[Any, Any], names: list[str], field: str, as_row: Callable[[Any], beam.Row]) -> beam.Row:
    row, result = pair
    return beam.Row(**{name: getattr(row, name) for name in names}, **{field: as_row(result)})


def _failed(pair: tuple[Any, DeadLetter]) -> beam.Row:
    row, letter = pair
    return beam.Row(element=row, msg=f"{letter.error}: {letter.reason}", stack="")


def _sampling(fields: Mapping[str, Any]) -> SamplingParams:
    try:
        return SamplingParams.parse(fields)
    except InvalidRequest as error:
        raise ConfigError(f"sampling: {error}") from None

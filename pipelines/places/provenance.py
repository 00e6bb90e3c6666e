"""The settings that an output's rows were made with, in a file beside them: `--resume` adds no rows of another kind.

.millrace/<name>.settings.json      {"command": "extract", "model": "org/name", "schema": {…}, …, "identity": "3f…"}

What decides what a row is counts, and no more: with other sampling parameters, examples or a better template what
failed may be tried again. The file's place is one that `folder/*` does not match, which a job may read and write.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from millrace.model_manager.wire.errors import ConfigError, MillraceError
from millrace.transforms.files.file_systems import create, exists
from millrace.transforms.files.object_reads import open_file
from millrace.transforms.files.object_stores import is_local
from millrace.transforms.tasks import DEFAULT_THRESHOLD, ClassifySettings, ExtractSettings, GenerateSettings
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.json_schemas import schema_of
from millrace.transforms.typed.shapes import Items, Leaf, Maybe, Piece, Shape
from millrace.transforms.writing.output_files import OutputFiles, output_and_format

from ..flags.job_options import JobOptions

_WORDS = ("title", "description", "examples", "default", "$comment")
"""Keywords of a JSON Schema that do not restrict its values."""
_BY_NAME = ("properties", "$defs", "definitions")
"""Keywords of a JSON Schema whose keys are names."""
_FLAGS = {"kinds": "schema"}
"""The flag of each setting whose flag has another name."""
_TEMPLATE = "template"
"""May change, and is noted so that --resume knows whether it compares prompts of one template."""
_IDENTITY = "identity"
"""`JobOptions.identity`, by which --resume finds requests that still run, or are answered and not written yet. It is
there until the job's end.
"""
_SHOWN = 60
"""Characters of a setting that is told."""
_log = logging.getLogger(__name__)


def check_settings(files: OutputFiles, options: JobOptions) -> None:
    """Check the settings of a resumed job. Raises ConfigError if the existing rows were made with other settings."""
    if not _has_rows(files):
        return
    if (earlier := _noted(files)) is None:
        _log.warning("there is no %s: what the rows of %s were made with is not known", files.settings, files.prefix)
        return
    for name, value in _settings(options).items():
        if name in earlier and not _is_same(value, earlier[name]):
            raise ConfigError(_refusal(name, value, earlier[name], files))


def _noted(files: OutputFiles) -> dict[str, Any] | None:
    """The settings that were written down; None where there are none."""
    if not exists(files.settings):
        return None
    with open_file(files.settings) as stream:
        content = stream.read()
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"--resume: {files.settings} is damaged ({error}); remove it if the rows were made with these settings"
        ) from None


def has_other_template(files: OutputFiles, options: JobOptions) -> bool:
    """Whether the prompts of a resumed job are made by another template than the noted one: no row is then the same."""
    noted = _noted(files)
    return noted is not None and noted.get(_TEMPLATE) != options.template


def with_identity(files: OutputFiles | None, options: JobOptions) -> JobOptions:
    """The options, with the noted identity if this job resumes the one that noted it."""
    noted = _noted(files) if files is not None and options.if_exists == "resume" else None
    return replace(options, identity=noted[_IDENTITY]) if noted and _IDENTITY in noted else options


def note_settings(files: OutputFiles, options: JobOptions) -> None:
    """Write them down, before the job writes rows; what a resumed job found there holds. Raises ConfigError."""
    settings = _settings(options) | {_TEMPLATE: options.template}
    if options.if_exists == "resume" and _has_rows(files):
        noted = _noted(files)
        if noted is None or _IDENTITY in noted:
            return
        settings = noted
    try:
        _write(files, settings | {_IDENTITY: options.identity})
    except OSError as error:
        raise ConfigError(
            f"--output {options.output}: no file can be made there: {error.strerror or error}; takes another folder"
        ) from None


def forget_identity(files: OutputFiles | None) -> None:
    """After a job: if its output is whole, --resume begins another, which samples anew what failed."""
    if files is None or files.has_unfinished_rows():
        return
    try:
        noted = _noted(files) or {}
        if noted.pop(_IDENTITY, None) is not None:
            _write(files, noted)
    except (OSError, MillraceError) as error:  # the job is done all the same
        _log.warning("%s keeps the job's identity, so --resume samples alike what failed: %s", files.settings, error)


def _write(files: OutputFiles, settings: dict[str, Any]) -> None:
    write_note(files.settings, msgspec.json.encode(settings) + b"\n")


def write_note(path: str, content: bytes) -> None:
    """Write a note beside an output, all or nothing; on a disk by another file, since a kill may come between, and
    through no link.

    Raises OSError, StorageError.
    """
    if not is_local(path):
        with create(path) as stream:
            stream.write(content)
        return
    place = Path(f"{path}.new")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    with place.open("xb") as stream:
        stream.write(content)
    place.replace(path)


def _is_same(now: Any, earlier: Any) -> bool:
    """The order of labels makes no other rows."""
    are_lists = isinstance(now, list) and isinstance(earlier, list)
    return sorted(now) == sorted(earlier) if are_lists else bool(now == earlier)


def _has_rows(files: OutputFiles) -> bool:
    return bool(files.current("completions") or files.interrupted("completions"))


def _refusal(name: str, now: Any, earlier: Any, files: OutputFiles) -> str:
    if name == "command":
        return (
            f"--resume: millrace {earlier} wrote the rows of {files.prefix}, and this is {now}: name another --output"
        )
    told = [_shown(name, value) for value in (now, earlier)]
    given = "" if "another" in told else f" {told[0]}"
    return (
        f"--{_FLAGS.get(name, name)}{given}: the rows of {files.prefix}, to which --resume would add, were made with "
        f"{told[1]}: takes what {files.settings} says, or another --output"
    )


def _shown(name: str, value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _SHOWN and name not in _FLAGS else "another"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "none" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _settings(options: JobOptions) -> dict[str, Any]:
    """The job's settings, as JSON values by the names of their flags."""
    updated = options.updates is not None
    settings: dict[str, Any] = {
        "command": options.task.command,
        **({} if updated else {"model": _model(options.model.model), "revision": options.model.revision}),
        "models": [_model(each.model) for each in options.models] or None,
        "backend": options.model.backend,
        "adapter": options.sampling.adapter,
        **_of_task(options),
        "output_format": output_and_format(str(options.output), options.output_format)[1],
    }
    return dict(msgspec.to_builtins(settings))


def _model(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def _of_task(options: JobOptions) -> dict[str, Any]:
    """The task's settings that decide what a row is."""
    settings = options.settings
    if isinstance(settings, ExtractSettings):
        record = record_of(settings.rows)
        return {"schema": _types(schema_of(record)), "kinds": _kinds(record)}
    if isinstance(settings, ClassifySettings):
        threshold = DEFAULT_THRESHOLD if settings.threshold is None else settings.threshold
        return {"labels": list(settings.labels), "multiple": settings.multiple, "threshold": threshold}
    if isinstance(settings, GenerateSettings):
        return {"constraint": options.sampling.constraint} | ({"keep_cut": True} if settings.keep_cut else {})
    return msgspec.structs.asdict(settings)


def _kinds(shape: Shape) -> Any:
    """What columns are, and which texts a document's pieces: no JSON Schema says it."""
    if isinstance(shape, Leaf):
        return [shape.kind, shape.digits, shape.places] if shape.kind == "decimal" else shape.kind
    if isinstance(shape, Piece):
        return f"span of {shape.span.by}"
    if isinstance(shape, Maybe):
        return _kinds(shape.shape)
    if isinstance(shape, Items):
        return [_kinds(shape.item)]
    return {member.key: _kinds(member.shape) for member in shape.members}


def _types(schema: Any) -> Any:
    """A JSON Schema without the words that only explain it."""
    if isinstance(schema, list):
        return [_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _types(each) for name, each in value.items()} if key in _BY_NAME else _types(value)
        for key, value in schema.items()
        if key not in _WORDS
    }

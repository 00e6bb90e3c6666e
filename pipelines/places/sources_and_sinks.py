"""The places that `--input`, `--output` and `--dead_letters` name, and the transforms that read and write them.

    --input         pubsub:projects/P/subscriptions/S   pubsub:projects/P/topics/T   kafka:HOST:PORT/TOPIC
                    watch:folder/*.jsonl                files and globs
    --output        pubsub:projects/P/topics/T          kafka:HOST:PORT/TOPIC        the beginning of files' paths
    --dead_letters  likewise; by default they go where the results go

An input becomes a PTransform that gives `(prompts, dead_letters)`, as ReadPrompts.with_exception_handling() does. Each
output becomes a PTransform that takes `(results, failed, unreadable)`.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import Address, Files, KafkaTopic, PubSubAddress, WatchedFiles
from millrace.transforms.files.file_systems import match, remove
from millrace.transforms.reading.read_prompts import ReadPrompts
from millrace.transforms.tasks import ExtractSettings
from millrace.transforms.typed.describe import record_of
from millrace.transforms.writing.arrow_schema import extracted_schema
from millrace.transforms.writing.output_files import OutputFiles, output_and_format
from millrace.transforms.writing.write_completions import WriteCompletions

from ..flags.job_options import JobOptions
from .loops import topics_written


def drains(options: JobOptions) -> bool:
    """Whether the job waits for its files before it ends.

    Prism commits a bundle, and so acknowledges its messages, once it has the results in memory.
    """
    return not options.runner.keeps_state and options.source.is_broker and has_files(options)


def has_files(options: JobOptions) -> bool:
    return not options.output.is_broker or not options.letters.is_broker


def drain_file(options: JobOptions) -> Path:
    """Once this file exists, the workers of this machine read no more of a broker's stream."""
    return Path(tempfile.gettempdir()) / f"millrace-drain-{options.job.split()[-1]}"


def files_of(options: JobOptions) -> OutputFiles | None:
    """The files of the results, if the results go to files."""
    return files_at(options.output) if isinstance(options.output, Files) else None


def files_at(address: Files) -> OutputFiles:
    """The files of an output; raises ConfigError for a path that no file of an output can begin with."""
    return OutputFiles(output_and_format(address.path, None)[0])


def clear_temporary(options: JobOptions, *, may_go_on: bool = False) -> None:
    """After a stream: remove the temporary files beside its output, unless no broker has their rows any more.

    An interrupted job of files keeps its temporary files. `may_go_on`: a checkpoint or savepoint of the runner may name
    temporary files, which a job that goes on from it finishes; then only an empty folder is removed.
    """
    for address in {options.output, options.letters}:
        if isinstance(address, Files):
            files = files_at(address)
            if not may_go_on and not options.source.is_broker:
                remove([str(file.path) for file in match(f"{files.temporary}/building-*")])
            if not match(f"{files.temporary}/**"):
                files.clear()


def reader(options: JobOptions) -> beam.PTransform:
    """The input's `(prompts, dead_letters)`."""
    rows: dict[str, Any] = {
        "input_format": input_format_of(options),
        "prompt_column": options.prompt_column,
        "id_column": options.id_column,
        "row_params": options.row_params,
        "documents": options.task.documents,
        "template": options.template,
        "fail_fast": options.fail_fast,
    }
    if drains(options):
        rows["drain"] = str(drain_file(options))
    if isinstance(options.source, PubSubAddress):
        rows["outputs"] = topics_written(options.output, options.dead_letters)
    return _reader(options.input, rows, options.limit).with_exception_handling()


def input_format_of(options: JobOptions) -> str | None:
    """The format that is named. By default documents are files, unless they are messages."""
    by_default = "documents" if options.task.documents and not options.source.is_broker else None
    return options.input_format or by_default


def schema_of(options: JobOptions) -> pa.Schema | None:
    """The schema of the results' rows in Parquet, if their type is the user's."""
    settings = options.settings
    return extracted_schema(record_of(settings.rows)) if isinstance(settings, ExtractSettings) else None


def _reader(inputs: Sequence[Address], rows: dict[str, Any], limit: int | None) -> Any:
    source = inputs[0]
    if isinstance(source, PubSubAddress):
        from millrace.transforms.streams.pubsub import ReadPubSub

        return ReadPubSub(source, **rows)
    if isinstance(source, KafkaTopic):
        from millrace.transforms.streams.kafka import ReadKafka

        return ReadKafka(source, **rows)
    paths = [each.path for each in inputs if isinstance(each, Files)]
    if isinstance(source, WatchedFiles):
        from millrace.transforms.streams.watch import WatchPrompts

        return WatchPrompts(paths, **rows)
    return ReadPrompts(paths, limit=limit, **rows)


def writer(options: JobOptions) -> beam.PTransform:
    """The transform that takes and writes `(results, failed, unreadable)`."""
    letters = options.letters
    if are_same_files(options.output, letters):
        return _writer(options.output, options, options.output_format)
    results: Any = _writer(options.output, options, options.output_format)
    returns = options.output.is_broker and letters != options.output
    if returns:
        results = results.with_exception_handling()
    return _Apart(results, _letters_writer(letters, options), flatten=not letters.is_broker, returns=returns)


def _letters_writer(address: Address, options: JobOptions) -> beam.PTransform:
    if options.if_exists == "resume" and not options.is_stream:
        options = replace(options, if_exists="overwrite")  # the rows of earlier letters are tried again
    return _writer(address, options, "jsonl")


def letters_apart(options: JobOptions) -> Address | None:
    """Where dead letters go, if that is said, and is not the files of the results, which have some beside them."""
    return None if are_same_files(options.output, options.letters) else options.dead_letters


def are_same_files(results: Address, letters: Address) -> bool:
    """Whether dead letters have the prefix of the results, or would have their names beside them: that is one writer.

    Two would remove each other's temporary files.
    """
    if not isinstance(results, Files) or not isinstance(letters, Files):
        return False
    return _prefix(letters) in (_prefix(results), f"{_prefix(results)}.dead_letters")


def _prefix(address: Files) -> str:
    prefix = files_at(address).prefix
    return os.path.normpath(prefix) if address.is_local else prefix


def _writer(address: Address, options: JobOptions, output_format: str | None) -> beam.PTransform:
    if isinstance(address, PubSubAddress):
        from millrace.transforms.streams.pubsub import WritePubSub

        return WritePubSub(address)
    if isinstance(address, KafkaTopic):
        from millrace.transforms.streams.kafka import WriteKafka

        return WriteKafka(address)
    return _file_writer(address.path, options, output_format)


def _file_writer(prefix: str, options: JobOptions, output_format: str | None) -> beam.PTransform:
    if options.is_stream:
        from millrace.transforms.streams.windowed_files import WriteWindowedFiles

        return WriteWindowedFiles(
            prefix,
            **of_windows(options),
            num_shards=options.num_shards or 1,
            output_format=output_format,
            if_exists=options.if_exists,
            schema=schema_of(options),
        )
    return WriteCompletions(
        prefix,
        output_format=output_format,
        if_exists=options.if_exists,
        num_shards=options.num_shards,
        schema=schema_of(options),
    )


def of_windows(options: JobOptions) -> dict[str, float]:
    """The settings that only a stream's files have, as far as they are given."""
    settings = {"window": options.window, "lateness": options.lateness}
    return {name: value for name, value in settings.items() if value is not None}


class _Apart(beam.PTransform):
    """Results to one place, dead letters to another, or to the same topic. Gives what the first gives.

    To topics nothing is flattened: so all steps of a stream stay in one stage, and a source waits for its sink.
    """

    def __init__(self, results: beam.PTransform, letters: beam.PTransform, *, flatten: bool, returns: bool) -> None:
        """`returns`: `results` gives dead letters, of elements that it cannot take."""
        super().__init__()
        self._results = results
        self._letters = letters
        self._flatten = flatten
        self._returns = returns

    def expand(self, inputs: Any) -> Any:
        results, *letters = inputs
        written = results | "Write results" >> self._results
        if self._returns:
            letters.append(written)
        if self._flatten:
            letters = [letters | "Dead letters" >> beam.Flatten()]
        with _errors_of_letters():
            for number, each in enumerate(letters):
                each | f"Write dead letters {number}" >> self._letters
        return written


@contextlib.contextmanager
def _errors_of_letters() -> Iterator[None]:
    """A writer's errors name `output`; the flag of this one is --dead_letters."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(re.sub("^output=", "dead_letters=", str(error))) from None

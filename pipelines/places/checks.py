"""Checks of a job before it starts: what its input, output and dead letters name, alone and together; the columns that
it reads, where the head of a local file says which there are.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import StandardOptions

from millrace.model_manager.wire.conversion import did_you_mean, nearest
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import Address, Files, WatchedFiles
from millrace.transforms.elements.prompt_template import columns_of
from millrace.transforms.files.file_systems import match
from millrace.transforms.files.formats import delimiter, input_format
from millrace.transforms.files.input_files import is_damage, open_input
from millrace.transforms.files.object_stores import S3
from millrace.transforms.runners import TRIED, has_checkpoints
from millrace.transforms.tasks import ScoreSettings

from ..flags.job_options import JobOptions
from .bucket_objects import check_bucket
from .loops import check_apart, check_reads_no_output
from .provenance import check_settings
from .sources_and_sinks import files_at, files_of, has_files, input_format_of, letters_apart, of_windows, reader, writer
from .watched import check_place

_DEVICES = Path("/dev")
_SHOWN = 10
"""Columns that are told."""


def check(options: JobOptions) -> None:
    """Raises ConfigError for flags that cannot hold, alone or together; then warns of what may be wrong."""
    _check_places(options)
    _check_buckets(options)
    if options.is_stream and options.if_exists == "overwrite":
        raise ConfigError(
            "--overwrite: a stream replaces no output; takes --resume, which adds to what is there, or another --output"
        )
    _check_runner(options)
    if options.output.is_broker:
        _check_no_flags_of_files(options)
    if has_files(options) and not options.is_stream:
        for name, value in of_windows(options).items():
            raise ConfigError(f"--{name} {value:g} needs a stream as --input, and {options.source} is not one")
    if options.is_stream and options.limit is not None:
        raise ConfigError(
            f"--limit {options.limit} needs input that ends, and {options.source} is a stream: leave it out"
        )
    reader(options), writer(options)  # their constructors check what they are given
    if not options.is_stream:
        for flag, column in _columns_named(options):
            _check_column(flag, column, options.input, input_format_of(options))
    if options.is_stream:
        check_apart(options.input, options.output, letters_apart(options), options.output_format)
        _check_folders(options)
    elif not options.dry_run:
        check_reads_no_output(options.input, options.output, letters_apart(options))
    files = files_of(options)
    if files is not None and options.if_exists == "resume":
        check_settings(files, options)


def _columns_named(options: JobOptions) -> Iterator[tuple[str, str]]:
    """The flags that name columns of the input, with each column."""
    if options.prompt_column:
        yield "--text_column" if options.task.documents else "--prompt_column", options.prompt_column
    if options.id_column:
        yield "--id_column", options.id_column
    if isinstance(options.settings, ScoreSettings):
        yield "--continuations_column", options.settings.continuations_column
    for column in columns_of(options.template) if options.template is not None else ():
        yield "--template: column", column


def _check_column(flag: str, name: str, inputs: Sequence[Address], named_format: str | None) -> None:
    """Raises ConfigError where the first CSV or Parquet file has no column of that name; what is not here passes."""
    paths = [
        str(file.path) for each in inputs if isinstance(each, Files) and each.is_local for file in match(each.path)
    ]
    formats = ((path, input_format(path, named_format)) for path in paths)
    path, form = next(((path, form) for path, form in formats if form in ("csv", "parquet")), ("", ""))
    columns = _columns(path, form) if path else []
    if not columns or name in columns:
        return
    hint = did_you_mean(nearest(name, columns))
    more = ", …" if len(columns) > _SHOWN else ""
    raise ConfigError(f"{flag} {name}: not in {path}, whose columns are {', '.join(columns[:_SHOWN])}{more}{hint}")


def _columns(path: str, form: str) -> list[str]:
    """The column names in a file's head; none for a damaged file, which its reader tells."""
    try:
        with open_input(path) as stream:
            if form == "parquet":
                return list(pq.ParquetFile(stream).schema_arrow.names)
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="backslashreplace", newline="")
            return next(csv.reader(text, delimiter=delimiter(path)), [])
    except Exception as error:
        if isinstance(error, csv.Error) or is_damage(error):
            return []
        raise


def _check_places(options: JobOptions) -> None:
    """Raises ConfigError for a stream beside another input, and for an output that takes no results."""
    streams = [address for address in options.input if address.is_stream]
    if streams and len(options.input) > 1 and not all(isinstance(each, WatchedFiles) for each in options.input):
        raise ConfigError(f"--input {streams[0]}: is a stream: takes one stream alone, or files")
    for flag, address in (("--output", options.output), ("--dead_letters", options.letters)):
        if not address.takes_results:
            raise ConfigError(
                f"{flag} {address}: takes a topic to write to, pubsub:projects/P/topics/T or kafka:HOST:PORT/TOPIC, or "
                "the beginning of files' paths"
            )
        if isinstance(address, Files) and options.runner.is_on_this_machine:
            _check_folder(flag, address)


def _check_folder(flag: str, address: Files) -> None:
    """Raises ConfigError for a path on this machine where no file can be made."""
    prefix = Path(files_at(address).prefix)
    folder = prefix.parent
    if not address.is_local:
        return
    if prefix.exists() and not prefix.is_dir() and not prefix.is_file():
        raise ConfigError(f"{flag} {address}: is no file; takes the beginning of the files' paths, in a folder")
    if folder.resolve() == _DEVICES:
        raise ConfigError(f"{flag} {address}: the folder /dev holds devices; takes a path in another folder")
    there = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    if not there.is_dir():
        raise ConfigError(f"{flag} {address}: {there} is a file; takes a path whose folder holds files")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag} {address}: the folder {there} is read-only; takes a path in a folder that is not")


def _check_runner(options: JobOptions) -> None:
    runner = options.runner
    if options.is_stream and not runner.takes_streams:
        default, *others = (each.name for each in TRIED if each.takes_streams)
        raise ConfigError(
            f"--runner {options.beam.view_as(StandardOptions).runner}: reads input that ends, and {options.source} "
            f"is a stream: takes {default} (the default), {', '.join(others)}"
        )
    if options.stateful and options.source.is_broker and not runner.keeps_state:
        raise ConfigError(
            f"--stateful: {runner.name} keeps its state in memory only, and messages of {options.source} would be "
            "lost with it: leave it out, or name a runner that keeps state, as Flink and Dataflow do"
        )


def check_checkpoints(options: JobOptions) -> None:
    """Raises ConfigError for a job on Flink whose broker would wait for checkpoints in vain."""
    if options.source.is_broker and not has_checkpoints(options.beam):
        raise ConfigError(
            "--checkpointing_interval is missing: Flink acknowledges messages with each checkpoint, and makes none by "
            "default; takes milliseconds, such as 10000"
        )


def _check_buckets(options: JobOptions) -> None:
    """Ask for each bucket once, by the first address that is in it."""
    others = ("--output", options.output), ("--dead_letters", letters_apart(options))
    flags = [*(("--input", each) for each in options.input), *others]
    places = [(flag, each.path) for flag, each in flags if isinstance(each, Files) and each.scheme == S3]
    for flag, path in {path.split("/")[2]: (flag, path) for flag, path in reversed(places)}.values():
        try:
            check_bucket(path)
        except ConfigError as error:
            raise ConfigError(f"{flag} {error}") from None


def _check_folders(options: JobOptions) -> None:
    if options.runner.is_on_this_machine:  # elsewhere other machines look
        for address in options.input:
            if isinstance(address, WatchedFiles):
                check_place(address)


def _check_no_flags_of_files(options: JobOptions) -> None:
    """Raises ConfigError for flags of files where results go to a topic and no dead letters in files need them."""
    given = {"--output_format": options.output_format is not None}
    if options.letters.is_broker:
        given |= {
            "--overwrite": options.if_exists == "overwrite",
            "--num_shards": options.num_shards is not None,
            **{f"--{name}": True for name in of_windows(options)},
        }
    if not options.is_stream or options.letters.is_broker:
        given["--resume"] = options.if_exists == "resume"
    for flag in (flag for flag, is_given in given.items() if is_given):
        raise ConfigError(f"{flag} needs files as --output, and {options.output} is a topic")

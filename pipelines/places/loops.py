"""Refuses a job whose flags say that it reads what it writes: each answer would be a prompt, without end.

Kafka's brokers are compared by their names. Which topic a Pub/Sub subscription has, its reader asks Pub/Sub
(`topics_written`). Files are compared by the names that their writer gives.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from typing import get_args

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import Address, Files, PubSubAddress, WatchedFiles
from millrace.transforms.files.file_systems import match
from millrace.transforms.writing.output_files import OutputFiles, OutputKind, extension_of, output_and_format

from .watched import is_watched

_WINDOW = "20260101T120000Z-20260101T120100Z"
_LABELS = ([_WINDOW], [_WINDOW, "pane1"], ["resume1", _WINDOW])
"""In the names of a stream's files: at the end of a window, later, of a second job."""
_WHAT = {"--output": "answers", "--dead_letters": "dead letters"}


def check_apart(inputs: Sequence[Address], output: Address, letters: Address | None, output_format: str | None) -> None:
    """Raises ConfigError where a stream's answers or dead letters would be its own input.

    `letters`: None where dead letters go beside the answers.
    """
    for source in inputs:
        for flag, address in _written(output, letters):
            if not isinstance(source, Files) and source.is_same_topic(address):
                raise ConfigError(f"{flag} {address}: is --input too, so the job would answer its own {_WHAT[flag]}")
    for source in inputs:
        for flag, address, path in _files(output, letters, output_format):
            if isinstance(source, WatchedFiles) and is_watched(path, source.path):
                raise ConfigError(
                    f"{flag} {address}: names files such as {path}, which --input {source} matches, so the job "
                    f"would answer its own {_WHAT[flag]}"
                )


def check_reads_no_output(inputs: Sequence[Address], output: Address, letters: Address | None) -> None:
    """Raises ConfigError where files that are there from an earlier run with this output are among the input.

    Only folders of this machine are looked at: a bucket is not listed before its credentials are checked.
    """
    for flag, address in _written(output, letters):
        if isinstance(address, Files) and address.is_local:
            files = OutputFiles(output_and_format(address.path, None)[0])
            there = {_real(path): path for kind in get_args(OutputKind) for path in files.existing(kind)}
            for source in inputs if there else ():
                matched = match(source.path) if isinstance(source, Files) else []
                if own := [path for file in matched if (path := there.get(_real(str(file.path))))]:
                    raise ConfigError(
                        f"--input {source} matches {own[0]}, which {flag} {address} names too: the job would answer "
                        f"its own {_WHAT[flag]}; write them into another folder"
                    )


def _real(path: str) -> str:
    """However it was named, by links too."""
    return os.path.realpath(path)


def topics_written(output: Address, letters: Address | None) -> dict[str, str]:
    """The paths of the Pub/Sub topics that a job writes, and the flag that named each."""
    written = reversed(_written(output, letters))
    return {address.path: flag for flag, address in written if isinstance(address, PubSubAddress)}


def _written(output: Address, letters: Address | None) -> list[tuple[str, Address]]:
    return [("--output", output), *([("--dead_letters", letters)] if letters else [])]


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _files(output: Address, letters: Address | None, output_format: str | None) -> Iterator[tuple[str, Address, str]]:
    """Flag, its address and the path of each file that a stream would write, or one like it."""
    kinds: list[tuple[str, Address, OutputKind]] = [("--output", output, "completions")]
    if letters is None:
        kinds.append(("--output", output, "dead_letters"))
    else:
        kinds.append(("--dead_letters", letters, "completions"))
    for flag, address, kind in kinds:
        if isinstance(address, Files):
            prefix, form = output_and_format(address.path, output_format if flag == "--output" else "jsonl")
            files = OutputFiles(prefix)
            shards = [files.shard(kind, labels, 0, 1, extension_of(kind, form)) for labels in _LABELS]
            paths = [*shards, f"{files.temporary}/building-{0:032x}", files.settings]
            yield from ((flag, address, path) for path in paths)

"""The prompts that rows of an output answer, found again in the input by the rows' ids.

An id that is a place (`prompts.jsonl@1234`, or a file's path) is looked up there, but only in files that the input has:
no id in an output makes anything else be read. Other ids take a pass over the input's first rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apache_beam.io.filesystems import BeamIOError

from millrace.model_manager.wire.errors import ConfigError, MillraceError
from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.files.formats import input_format
from millrace.transforms.reading.file_ranges import FileRange, match_files, split_file
from millrace.transforms.reading.positions import find_row
from millrace.transforms.reading.read_rows import read_range
from millrace.transforms.reading.row_places import LINE_MARK, Position

from .texts import MOST_OF_DOCUMENT, Clipped

MOST_ROWS = 200_000
"""Rows of the input that are looked through."""
Key = tuple[str, str]
"""The id of an output's row and its prompt_hash, which may be empty."""


@dataclass(frozen=True)
class Input:
    """Where prompts came from, and how they were read."""

    patterns: Sequence[str]
    shape: RowShape = field(default_factory=RowShape)
    named_format: str | None = None


def key_of(row: Mapping[str, Any]) -> Key:
    """What names a row's prompt."""
    identity, digest = row.get("id", row.get("custom_id")), row.get("prompt_hash")
    return (identity if isinstance(identity, str) else "", digest if isinstance(digest, str) else "")


def find_prompts(source: Input, keys: Iterable[Key], most_rows: int = MOST_ROWS) -> dict[Key, Clipped]:
    """The prompts' beginnings as they were read, as far as they are found; none of an input that is gone or damaged."""
    wanted = {key for key in keys if key[0]}
    try:
        return _Search(source).run(wanted, most_rows)
    except (MillraceError, OSError, BeamIOError, ValueError):
        return {}


class _Search:
    def __init__(self, source: Input) -> None:
        self._source = source
        self._files = {str(file.path): file for file in match_files(list(source.patterns))}
        self._found: dict[Key, Clipped] = {}

    def run(self, wanted: set[Key], most_rows: int) -> dict[Key, Clipped]:
        for key in wanted:
            if (prompt := self._at_place(key[0])) is not None:
                self._keep(key, prompt)
        self._pass_over(wanted - self._found.keys(), most_rows)
        return self._found

    def _at_place(self, identity: str) -> Prompt | None:
        """The prompt of a line, or of a file that is read whole."""
        path, mark, place = identity.rpartition(LINE_MARK)
        if mark and place.isdecimal() and path in self._files and self._format(path) in ("jsonl", "text"):
            with contextlib.suppress(ConfigError):  # no row begins there
                return _prompt(find_row(Position.parse(identity), self._source.shape, self._source.named_format))
        if identity in self._files and self._format(identity) == "file":
            return next(filter(None, map(_prompt, read_range(FileRange(identity, "file"), self._source.shape))), None)
        return None

    def _format(self, path: str) -> str:
        return input_format(path, self._source.named_format)

    def _pass_over(self, wanted: set[Key], most_rows: int) -> None:
        left: dict[str, set[Key]] = {}
        for key in wanted:
            left.setdefault(key[0], set()).add(key)
        for prompt in self._rows(most_rows) if left else ():
            for key in [*left.get(prompt.id, ())]:
                if key[1] in ("", prompt.prompt_hash):
                    self._keep(key, prompt)
                    left[prompt.id].discard(key)
            if not left.get(prompt.id, True):
                del left[prompt.id]
                if not left:
                    return

    def _rows(self, most: int) -> Iterator[Prompt]:
        parts = (part for file in self._files.values() for part in split_file(file, self._source.named_format))
        rows = (row for part in parts for row in read_range(part, self._source.shape))
        for number, row in enumerate(rows):
            if number >= most:
                return
            if isinstance(row, Prompt):
                yield row

    def _keep(self, key: Key, prompt: Prompt) -> None:
        text = prompt_text(prompt)
        self._found[key] = Clipped(text[:MOST_OF_DOCUMENT], max(len(text) - MOST_OF_DOCUMENT, 0))


def _prompt(row: Prompt | DeadLetter) -> Prompt | None:
    return row if isinstance(row, Prompt) else None


def prompt_text(prompt: Prompt) -> str:
    """A prompt as a page shows it: chat messages one below the other."""
    if prompt.text is not None:
        return prompt.text
    if prompt.messages is not None:
        return "\n\n".join(f"{each.get('role', '')}: {each.get('content', '')}" for each in prompt.messages)
    return f"token ids {', '.join(map(str, (prompt.token_ids or [])[:1000]))}"

"""What names a row: the path of its file, and a byte or a number. Opens no file and needs no Beam."""

from __future__ import annotations

import re
from typing import NamedTuple

from millrace.model_manager.wire.errors import ConfigError

from ..files.formats import InputFormat, input_format

LINE_MARK = "@"
"""Stands before the first byte of a line."""
ROW_MARK = "#"
"""Stands before the number of a row."""
_POSITION = re.compile(rf"(.+)([{LINE_MARK}{ROW_MARK}])(\d+)", re.DOTALL)


class Position(NamedTuple):
    """A row's place."""

    path: str
    mark: str
    number: int
    """Its first byte, from 0, or its number, from 1: as the mark says."""

    @classmethod
    def parse(cls, text: str) -> Position:
        """From `<path>@<byte>` or `<path>#<row>`; raises ConfigError for anything else."""
        found = _POSITION.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"{text}: takes <path>{LINE_MARK}<byte> or <path>{ROW_MARK}<row>, for example rows.jsonl@0"
            )
        return cls(found[1], found[2], int(found[3]))

    def __str__(self) -> str:
        return f"{self.path}{self.mark}{self.number}"

    def format(self, named: str | None = None) -> InputFormat:
        """The file's format, `named` or by its extension; raises ConfigError where it has no such places."""
        form = input_format(self.path, named)
        if form == "file":
            raise ConfigError(f"{self}: a file that is read whole is one row; takes jsonl, text, csv or parquet")
        if (self.mark == LINE_MARK) != (form in ("jsonl", "text")):
            takes = f"{ROW_MARK}<row>" if self.mark == LINE_MARK else f"{LINE_MARK}<byte>"
            raise ConfigError(f"{self}: takes <path>{takes} for {form}")
        return form

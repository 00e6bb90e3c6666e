"""`millrace show prompts.jsonl@1234`: the row that an id, or a dead letter's source, names.

What it prints is the row as it is in JSONL, the line of a text file, or an object that reads as the row does; on a
terminal without the characters that would steer it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import msgspec

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.files.formats import NamedFormat, input_format
from millrace.transforms.reading.row_places import Position

from ..edge import at_the_edge
from ..flags.parser import FlagParser
from ..pages.texts import harmless

if TYPE_CHECKING:
    from millrace.transforms.elements.completions import DeadLetter, Prompt


def main(arguments: Sequence[str]) -> int:
    """Print the rows; returns the exit status."""
    return at_the_edge(lambda: _show(arguments))


def _show(arguments: Sequence[str]) -> int:
    parser = FlagParser(prog="millrace show", description="Print the rows at places that ids and dead letters name.")
    parser.add_argument(
        "places",
        nargs="+",
        metavar="PLACE",
        help="Places of rows: <path>@<first byte> for a line, <path>#<number> for a row.",
    )
    parser.add_argument(
        "--input_format", choices=list(get_args(NamedFormat)), help="Format of the files. Default: by the extension."
    )
    flags = parser.parse_args(list(arguments))
    positions = [_position(place) for place in flags.places]
    for position in positions:
        position.format(flags.input_format)
    for position in positions:
        row = _row(position, flags.input_format)
        print(harmless(row) if sys.stdout.isatty() else row)
    return 0


def _position(place: str) -> Position:
    try:
        return Position.parse(place)
    except ConfigError as error:
        raise ConfigError(f"{error}; `millrace view` shows an output") from None


def _row(position: Position, named_format: str | None) -> str:
    """Imports Beam, which takes seconds, once there is a row to look for."""
    from millrace.transforms.elements.prompt_rows import RowShape
    from millrace.transforms.files.file_systems import use_surroundings
    from millrace.transforms.reading.positions import find_row

    use_surroundings()
    row = find_row(position, RowShape(), named_format)
    return _text(row, lines=input_format(position.path, named_format) == "text")


def _text(row: Prompt | DeadLetter, *, lines: bool) -> str:
    from millrace.transforms.elements.completions import DeadLetter

    if isinstance(row, DeadLetter):
        return row.row if isinstance(row.row, str) else msgspec.json.encode(row.row).decode()
    if row.original is not None:
        return row.original
    return str(row.text) if lines else msgspec.json.encode(row.row()).decode()

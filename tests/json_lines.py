"""Files of rows in JSON, as tests look at them and make them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def rows_of(folder: Path, pattern: str) -> list[Any]:
    """The rows of a folder's files, file by file."""
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """A file of these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path

"""The file of checksums that may stand beside a model's files: SHA256SUMS, as `sha256sum *` prints it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from ..wire.errors import ModelCorrupt

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


def check_sums(folder: Path) -> None:
    """Compare the files of a folder with its SHA256SUMS, if it has one; reads all that is listed.

    Raises ModelCorrupt, naming the file that differs or is missing.
    """
    if not (folder / SUMS).is_file():
        return
    for number, line in enumerate((folder / SUMS).read_text(errors="replace").splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise ModelCorrupt(f"{folder / SUMS}: line {number} is none of sha256sum's; `sha256sum *` prints them")
        if found[2] != SUMS:
            _check(folder / found[2], found[1].lower())


def _check(file: Path, digest: str) -> None:
    try:
        with file.open("rb") as opened:
            has = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ModelCorrupt(f"{file}: is in {SUMS}, and cannot be read: {error.strerror}") from None
    if has != digest:
        raise ModelCorrupt(f"{file}: is damaged: its SHA-256 is not the one in {SUMS}; copy the file again")

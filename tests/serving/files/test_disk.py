"""A disk that is full: nothing half-written stays."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from millrace.serving.files.disk import write_whole
from millrace.serving.files.file_store import OwnerFiles


class Full(io.FileIO):
    """A file of a full disk: not a byte more has room."""

    def write(self, _data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def _full(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, mode: str) -> Any:
        return io.BufferedWriter(Full(path, mode))

    monkeypatch.setattr(Path, "open", opened)


@pytest.mark.usefixtures("_full")
@pytest.mark.parametrize("lasting", [True, False])
def test_a_write_that_fails_leaves_the_old_content_alone(tmp_path: Path, lasting: bool) -> None:
    path = tmp_path / "kept"
    path.touch()
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new", lasting=lasting)
    assert [*tmp_path.iterdir()] == [path]


def begun(files: OwnerFiles, *, is_cut_off: bool) -> None:
    """A file that gets some content, and no end."""
    with files.new() as new:
        new.stream.write(b"content")
        if is_cut_off:
            raise ValueError("cut off")
        new.keep("a", "batch")


@pytest.mark.usefixtures("_full")
def test_a_file_that_has_no_room_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        begun(OwnerFiles(tmp_path), is_cut_off=False)
    assert not [*(tmp_path / "files").iterdir()]


@pytest.mark.usefixtures("_full")
def test_an_error_in_the_middle_is_told_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cut off"):
        begun(OwnerFiles(tmp_path), is_cut_off=True)
    assert not [*(tmp_path / "files").iterdir()]

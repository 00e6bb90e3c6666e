"""Finding and removing files on any Beam file system.

Local globs are matched here: Beam walks the whole tree below the pattern's folder for them.
"""

from __future__ import annotations

import glob
import shutil
from pathlib import Path

from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.filesystems import FileSystems

from model_manager.wire.errors import ConfigError


def is_local(path: str) -> bool:
    """Whether the path has no scheme (`gs://`)."""
    return FileSystems.get_scheme(path) is None


def match(pattern: str) -> list[FileMetadata]:
    """The files of a path or glob (`**` for any depth), by name; ConfigError for a scheme that Beam does not know."""
    if is_local(pattern):
        paths = sorted(path for path in glob.glob(pattern, recursive=True) if Path(path).is_file())  # noqa: PTH207
        return [FileMetadata(path, Path(path).stat().st_size, Path(path).stat().st_mtime) for path in paths]
    try:
        (result,) = FileSystems.match([pattern])
    except ValueError as error:
        raise ConfigError(f"{pattern}: {error}") from None
    return sorted(result.metadata_list, key=lambda file: str(file.path))


def remove(paths: list[str]) -> None:
    """Delete the files that are there."""
    there = [path for path in paths if FileSystems.exists(path)]
    if there:
        FileSystems.delete(there)


def remove_tree(folder: str) -> None:
    """Delete everything below a folder, and on a disk the folder."""
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        remove([file.path for file in match(f"{folder}/**")])


def rename(source: str, target: str) -> None:
    """Move a file in place of what may be there."""
    if is_local(target):
        Path(source).replace(target)
    else:
        FileSystems.rename([source], [target])

"""Finding, creating, moving and removing files on any Beam file system.

Local globs are matched here: Beam walks the whole tree below the pattern's folder for them. What an object store fails
is tried again where that is safe, and else raised as StorageError, which names the file.
"""

from __future__ import annotations

import contextlib
import glob
import re
import shutil
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from millrace.model_manager.wire.errors import ConfigError

from .object_stores import explained, is_local, repeated

_STORES = ("gs", "s3")
_OBJECT = re.compile(r"\w+://[^/]+/.*")


def use_surroundings() -> None:
    """Reach stores with what the environment says, where no job has options: without any Beam's S3 is an error."""
    FileSystems.set_options(PipelineOptions([]))


def match(pattern: str) -> list[FileMetadata]:
    """The files of a path or glob (`**` for any depth), by name; ConfigError for a path that check_scheme refuses."""
    if is_local(pattern):
        paths = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
        return [file for path in paths if (file := _local_file(path)) is not None]
    check_scheme(pattern)
    (result,) = repeated(pattern, "listed", partial(FileSystems.match, [pattern]))
    return sorted(result.metadata_list, key=lambda file: str(file.path))


def check_scheme(path: str) -> None:
    """Raises ConfigError for a path of no file system that Beam has here, and for a store's path without a bucket."""
    if is_local(path):
        return
    scheme = FileSystems.get_scheme(path)
    try:
        FileSystems.get_filesystem(path)
    except ValueError:
        raise ConfigError(
            f"{path}: {scheme}:// cannot be read or written; takes a local path, gs:// or s3://"
        ) from None
    except BeamIOError:
        raise ConfigError(
            f"{path}: {scheme}:// needs an extra of apache-beam's that is not installed; takes a local path, gs:// or s3://"
        ) from None
    if scheme in _STORES and not _OBJECT.fullmatch(path):
        raise ConfigError(f"{path}: takes {scheme}://BUCKET/PATH")


def _local_file(path: str) -> FileMetadata | None:
    """None for what is no file, or was moved away since it was listed."""
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileMetadata(path, found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None


def exists(path: str) -> bool:
    """Whether the file exists."""
    return bool(repeated(path, "looked for", partial(FileSystems.exists, path)))


@contextlib.contextmanager
def create(path: str) -> Iterator[BinaryIO]:
    """A stream that writes a file as it is given; in an object store there is no file before the block's end."""
    with explained(path, "written"):
        stream = FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)
    with contextlib.ExitStack() as at_end:
        at_end.enter_context(explained(path, "written"))
        yield at_end.enter_context(stream)


def remove(paths: list[str]) -> None:
    """Delete the files that are there."""
    for path in paths:
        if exists(path):
            repeated(path, "removed", partial(FileSystems.delete, [path]))


def remove_tree(folder: str) -> None:
    """Delete everything below a folder, and on a disk the folder."""
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        repeated(folder, "emptied", partial(_remove_below, folder))


def _remove_below(folder: str) -> None:
    """Beam only logs files of a folder that it could not delete; here they raise OSError."""
    if match(f"{folder}/**"):
        FileSystems.delete([f"{folder}/"])
        if left := match(f"{folder}/**"):
            raise OSError(f"{left[0].path} is still there")


def rename(source: str, target: str) -> None:
    """Move a file, over an existing target. A move that an earlier attempt finished is no error."""
    if is_local(target):
        Path(source).replace(target)
    else:
        repeated(source, f"renamed to {target}", partial(_move, source, target))


def _move(source: str, target: str) -> None:
    if FileSystems.exists(source) or not FileSystems.exists(target):
        FileSystems.rename([source], [target])

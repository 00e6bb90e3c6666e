"""Where a model's or an adapter's files are, parsed from its name into one of:

    org/name, org/name/file.gguf                        HubRepo
    gs://bucket/folder, gs://bucket/folder/file.gguf    Bucket
    millrace-tiny                                       EmbeddedModel
    folder, folder/file.gguf                            LocalPath

Looks at this machine's folders, as a folder here stands before a hub's repository. Asks no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

from ..wire.config import EMBEDDED_MODEL
from .gguf import is_gguf

_BUCKETS = "gs://"


def source_of(model: str) -> ModelSource:
    """The source that a name means."""
    if model.startswith(_BUCKETS):
        return Bucket(model)
    if model == EMBEDDED_MODEL:
        return EmbeddedModel(model)
    repo = model.rpartition("/")[0] if is_gguf(model) else model
    is_repo = may_be_remote(model) and repo.count("/") == 1 and not Path(repo).is_dir()
    return HubRepo(model) if is_repo else LocalPath(model)


def may_be_remote(name: str) -> bool:
    """False if a name has the form of a path of this machine. Reads no file, since that may take long."""
    return "/" in name and not name.startswith(("/", ".", "~"))


@dataclass(frozen=True)
class _Source:
    name: str
    """As it was asked for."""

    is_remote: ClassVar[bool] = False
    """True if the files are not on this machine."""

    @property
    def gguf(self) -> str:
        """Name of the GGUF file that is the model; empty for a model that is a folder."""
        return self.name.rpartition("/")[2] if is_gguf(self.name) else ""

    @property
    def folder(self) -> str:
        """Name of the folder that holds the files: of the GGUF file's folder, or `name` itself."""
        return self.name.rpartition("/")[0] if self.gguf else self.name

    def of_files(self) -> Self:
        """The folder that holds the files, as a source of the same kind."""
        return type(self)(self.folder)


class HubRepo(_Source):
    """A repository of the Hugging Face hub."""

    is_remote: ClassVar[bool] = True


class Bucket(_Source):
    """A folder in a bucket of Google Cloud Storage."""

    is_remote: ClassVar[bool] = True

    @property
    def bucket_and_prefix(self) -> tuple[str, str]:
        """The bucket's name, and the rest, which may be empty."""
        bucket, _, prefix = self.name.removeprefix(_BUCKETS).partition("/")
        return bucket, prefix


class EmbeddedModel(_Source):
    """The demo model, which comes with the package."""


class LocalPath(_Source):
    """A folder of this machine, or a file in one; it need not be there."""


ModelSource: TypeAlias = HubRepo | Bucket | EmbeddedModel | LocalPath

"""How much of the disk the files and batches of all owners may take (--max_files_gib)."""

from __future__ import annotations

from ..http.errors import HttpError
from ..settings import ServeConfig
from .disk import bytes_in
from .owners import files_folder

_A_BATCH = 3
"""Sizes of its input that a batch takes at least: the job's rows, their answers, and the output file."""


class Space:
    """Each call looks at the disk."""

    def __init__(self, settings: ServeConfig) -> None:
        self._settings = settings
        self._folder = files_folder(settings)

    def for_upload(self) -> tuple[int, str]:
        """How large the next file may be, and which flag says so; raises HttpError (400) where nothing more is kept."""
        left = self._left()
        if left <= 0:
            raise self._full("delete some first")
        most = self._settings.most_file_bytes
        return (most, "--max_file_mib") if most <= left else (left, "what --max_files_gib leaves")

    def check_uploaded(self) -> None:
        """Raises HttpError (400) where several uploads together are too much."""
        if self._left() < 0:
            raise self._full("delete some first")

    def check_batch(self, input_bytes: int) -> None:
        """Raises HttpError (400) where a batch of an input of that size would have no room for what it writes."""
        if self._left() < _A_BATCH * input_bytes:
            takes = f"a batch writes at least {_A_BATCH} times its input's size"
            raise self._full(
                f"{takes}, {_A_BATCH * input_bytes / 2**20:g} MiB here, and they are not left; delete some files"
            )

    def _left(self) -> int:
        return self._settings.most_kept - bytes_in(self._folder)

    def _full(self, rest: str) -> HttpError:
        told = f"the server keeps {self._settings.max_files_gib:g} GiB of files (--max_files_gib): {rest}"
        return HttpError(400, told, code="storage_full", headers={"connection": "close"})

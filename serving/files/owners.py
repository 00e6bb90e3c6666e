"""Whose request it is: files and batches of one API key lie in a folder of their own, so no other key names them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.types import Scope

from millrace.model_manager.wire.config import cache_folder
from millrace.model_manager.wire.errors import ConfigError

from ..settings import ServeConfig
from .disk import private_folder

_ANYONE = "anyone"
"""The folder of a server without keys."""


def files_folder(settings: ServeConfig) -> Path:
    """Where all owners' files are: --files_dir, by default in the machine's cache."""
    named = settings.files_dir
    return Path(named).expanduser().absolute() if named else cache_folder().absolute() / "serve"


def check_folder(settings: ServeConfig) -> None:
    """Make the folder that --files_dir names; raises ConfigError where that cannot be."""
    if settings.files_dir is not None:
        try:
            private_folder(files_folder(settings))
        except OSError as error:
            raise ConfigError(
                f"files_dir={settings.files_dir!r}: no folder can be made there: {error.strerror or error}"
            ) from None


def owner_of(scope: Scope, settings: ServeConfig) -> str:
    """The name of the folder of whoever asks. The key itself, which keys.py has checked, is not in it."""
    if settings.api_key_file is None:
        return _ANYONE
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    return f"key-{hashlib.sha256(given.partition(b' ')[2].strip()).hexdigest()[:32]}"


def owners(folder: Path) -> list[str]:
    """Everyone who has a folder."""
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []

"""Updates: values that name another model while a job runs, and the file that may hold one. Knows no client.

An update is a model's name, a mapping of ModelConfig's fields, or a ModelConfig. A name or mapping is applied to the
settings that the transform was given, not to earlier updates, so the last update alone decides. If it names another
model, the revision of the transform's model is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import ConfigError

from ..addresses import WatchedFiles, parse
from ..files.file_systems import match
from ..files.object_reads import open_file

_MOST_BYTES = 2**16
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WatchedFile:
    """A small file that names the model: its name alone, or a JSON object of settings. Raises ConfigError."""

    path: str
    """Local, or of a file system of Beam's (gs://…); as long as there is none, nothing changes."""
    every: float = 30.0
    """Seconds between two looks, by each worker process."""

    def __post_init__(self) -> None:
        if not 0 < self.every < float("inf"):
            raise ConfigError(f"every={shown(self.every)}: takes seconds, more than 0")

    @classmethod
    def parse(cls, given: str, every: float) -> WatchedFile:
        """Read `watch:FILE` of a command line. Raises ConfigError."""
        address = parse(given) if given != "watch:" else None
        if not isinstance(address, WatchedFiles):
            raise ConfigError(f"--model_updates {given}: takes watch:FILE")
        try:
            return cls(address.path, every)
        except ConfigError as error:
            raise ConfigError(str(error).replace("every=", "--model_updates_every ", 1)) from None


def updated(config: ModelConfig, update: Any) -> ModelConfig:
    """The transform's settings, updated; raises ConfigError for what is no update."""
    if isinstance(update, ModelConfig):
        return update
    if isinstance(update, str):
        update = {"model": update.strip()}
    if not isinstance(update, Mapping):
        raise ConfigError(
            f"an update of type {type(update).__name__}: takes a model's name, a mapping of settings, or a ModelConfig"
        )
    changed = update.get("model", config.model) != config.model
    return ModelConfig.parse(msgspec.structs.asdict(config) | ({"revision": None} if changed else {}) | dict(update))


def update_of(text: str) -> Any:
    """The update in a file's text; None for an empty one. Raises ConfigError for text that begins with `{` and is no
    JSON object.
    """
    text = text.strip()
    if not text.startswith("{"):
        return text or None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{text[:60]!r} is no JSON object: {error}") from None


class FileWatch:
    """Polls a file on a thread of its own, and calls `tell` with its text whenever it was written."""

    def __init__(self, file: WatchedFile, tell: Callable[[str], None]) -> None:
        self._file = file
        self._tell = tell
        self._looking = threading.Lock()
        self._seen: tuple[float, int] | None = None
        self._trouble = ""
        self._stopped = threading.Event()

    def look(self) -> None:
        """Call `tell` if the file was written since the last look. A failure to read it is logged when it is new."""
        with self._looking:
            try:
                text = self._new_text()
            except Exception as error:  # of whatever file system it is
                trouble = f"{type(error).__name__}: {error}"
                if trouble != self._trouble:
                    _log.warning("%s cannot be read, and the model stays: %s", self._file.path, trouble)
                self._trouble = trouble
                return
            if text is not None:
                self._tell(text)  # before another look finds a later text

    def _new_text(self) -> str | None:
        path, stamp = self._found()
        if path is None or stamp == self._seen:
            return None
        with open_file(path) as stream:
            text = stream.read(_MOST_BYTES).decode()
        if self._found() != (path, stamp):  # it is being written: the next look reads it, and tells it once
            return None
        self._seen, self._trouble = stamp, ""
        return text

    def _found(self) -> tuple[str | None, tuple[float, int]]:
        """The file's path, if it is there, and what tells that it was written."""
        for file in match(self._file.path):
            return file.path, (file.last_updated_in_seconds, file.size_in_bytes)
        return None, (0.0, 0)

    def start(self) -> None:
        """Look again every so often, until it is stopped."""
        self._stopped.clear()
        threading.Thread(target=self._watch, args=(self._stopped,), name="millrace-model-updates", daemon=True).start()

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._file.every):
            self.look()

    def stop(self) -> None:
        """Look no more; again does nothing."""
        self._stopped.set()
        self._stopped = threading.Event()

"""Switches the model that this process's elements go to: the last one that was named and could be opened.

The first element opens the first model, and all elements wait for it. A model that is named later is opened in the
background, while elements still go to the current model. Once it is ready, new requests go to it; requests in flight
finish with the model that has them. A model's client is closed when its last request is done. Knows no element and no
runner.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import Counter
from typing import Any

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError, MillraceError

from .client import Client, ClientOptions, Opener
from .updates import FileWatch, WatchedFile, update_of, updated

_LOOK_AGAIN_AFTER = 0.1
"""Seconds."""
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ModelChange:
    """The result of an update: the model changed, or an error."""

    model: str
    error: str = ""
    """The class in wire/errors.py of the failure, or "other"; empty if the model changed."""


class ModelSwitch:
    """Which model one transform uses in one process. Thread-safe; opens nothing until a user enters."""

    def __init__(self, options: ClientOptions, opener: Opener, watched: WatchedFile | None = None) -> None:
        self._options = options
        self._opener = opener
        self._watch = FileWatch(watched, self._read) if watched else None
        self._opening_first = threading.RLock()
        self._lock = threading.Condition()
        """Guards everything below; nothing that takes its time is done under it. It is re-entrant: the garbage
        collector may end a lease in a thread that begins one.
        """
        self._users = 0
        self._uses: Counter[Client] = Counter()
        """How many users each open client has: the elements in flight, and this switch for its current client."""
        self._current: Client | None = None
        self._wanted = options.model
        self._opening: threading.Event | None = None
        """Set when the model that is being opened is no longer wanted."""
        self._seen: tuple[Any, Any] | None = None
        self._changes: list[ModelChange] = []

    # ── for elements ─────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self) -> None:
        """Add a user of the switch, which must call `leave` in the end."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Remove a user. The last one closes the model, and ends the opening of another."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            current, self._current = self._current, None
            self._abandon()
            if self._watch:
                self._watch.stop()
        if current is not None:
            self.finish(current)

    def begin(self) -> Client:
        """The client for one more element, which must be finished; the first call waits until the model is loaded."""
        while True:
            with self._lock:
                if self._current is not None:
                    self._uses[self._current] += 1
                    return self._current
            with self._opening_first:
                if self._current is None:
                    self._open_first()

    def finish(self, client: Client, times: int = 1) -> None:
        """Note that `times` elements of this client are done. A client without users is closed."""
        with self._lock:
            self._uses[client] -= times
            if self._uses[client]:
                return
            del self._uses[client]
        client.close()

    def wait_for_change(self, before: Client) -> None:
        """Wait until the client is no longer the current one, at most _LOOK_AGAIN_AFTER; callers loop."""
        with self._lock:
            if self._current is before:
                self._lock.wait(_LOOK_AGAIN_AFTER)

    @property
    def current(self) -> Client | None:
        """Where the next element goes; None before the first."""
        return self._current

    def take_changes(self) -> list[ModelChange]:
        """The results of updates since the last call."""
        with self._lock:
            taken, self._changes = self._changes, []
        return taken

    # ── updates ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def see(self, update: Any, as_of: Any) -> None:
        """Take an update from a side input; `as_of` orders the windows. Late elements of an earlier window change
        nothing.
        """
        with self._lock:
            before, self._seen = self._seen, self._seen if self._seen and as_of < self._seen[0] else (as_of, update)
            is_new = before is None or self._seen[1] != before[1]
        if is_new and update is not None:
            self.ask(update)

    def ask(self, update: Any) -> None:
        """Go to the model that an update names, once it is loaded; never waits."""
        try:
            self._go_to(updated(self._options.model, update))
        except ConfigError as error:
            self._failed(str(update)[:80], error)

    def _read(self, text: str) -> None:
        try:
            update = update_of(text)
        except ConfigError as error:
            self._failed(text[:80], error)
        else:
            if update is not None:
                self.ask(update)

    def _go_to(self, config: ModelConfig) -> None:
        with self._lock:
            if self._opening is not None and config == self._wanted:
                return
            self._wanted = config
            self._abandon()
            if self._current is not None:
                self._opening = threading.Event()
                threading.Thread(
                    target=self._switch,
                    args=(config, self._opening, self._current),
                    name="millrace-model-switch",
                    daemon=True,
                ).start()

    def _abandon(self) -> None:
        if self._opening is not None:
            self._opening.set()
            self._opening = None

    def _switch(self, config: ModelConfig, opening: threading.Event, before: Client) -> None:
        """Open the model, and send the next elements to it. Runs on a thread of its own."""
        try:
            client = self._open(config, opening)
        except Exception as error:
            with self._lock:
                wanted = self._opening is opening
                self._opening = None if wanted else self._opening
            if wanted:
                self._failed(config.model, error)
            return
        with self._lock:
            wanted = self._opening is opening
            self._opening = None if wanted else self._opening
            is_new = wanted and (client.model, client.key) != (before.model, before.key)
            if is_new:
                self._current = client
                self._changes.append(ModelChange(client.model))
            self._lock.notify_all()
        if is_new:
            _log.info(
                "the model is %s (%s) from here on, no longer %s", client.model, client.info.revision, before.model
            )
            before.retire()
        self.finish(before if is_new else client)

    def _open_first(self) -> None:
        """Open the model that was named last; if it cannot be opened, the model that the transform was given."""
        if self._watch:
            self._watch.look()
        while True:
            with self._lock:
                config, opening = self._wanted, threading.Event()
                self._opening = opening
            try:
                client = self._open(config, opening)
                break
            except Exception as error:
                if not opening.is_set():  # else another was named meanwhile
                    self._fall_back(config, error)
        with self._lock:
            self._current = client
            self._opening = None if self._opening is opening else self._opening
            wanted = self._wanted
        if self._watch:
            self._watch.start()
        if wanted != config:
            self._go_to(wanted)

    def _fall_back(self, config: ModelConfig, error: Exception) -> None:
        with self._lock:
            self._opening = None
            if config == self._options.model:
                raise error
            self._wanted = self._options.model
        self._failed(config.model, error)

    def _open(self, config: ModelConfig, opening: threading.Event) -> Client:
        client = self._opener(dataclasses.replace(self._options, model=config, abandoned=opening))
        with self._lock:
            self._uses[client] += 1
        return client

    # ── what is said of it ───────────────────────────────────────────────────────────────────────────────────────────

    def _failed(self, model: str, error: Exception) -> None:
        ours = isinstance(error, MillraceError)
        why = str(error) if ours else f"{type(error).__name__}: {error}"
        kind = type(error).__name__ if ours else "other"
        with self._lock:
            current = self._current
            self._changes.append(ModelChange(model, kind))
        stays = current.model if current else self._options.model.model
        _log.warning("the model stays %s: the update to %s failed: %s", stays, model, why)

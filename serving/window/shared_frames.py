"""Looks at the machine once a second while somebody watches, and gives everybody the same frames."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator

import msgspec

from .figures import Figures
from .history import History, Point

_EVERY = 1.0
_log = logging.getLogger(__name__)


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to a viewer."""

    figures: Figures
    """The latest."""
    history: list[Point] | None = None
    """The points before these figures; a viewer's first frame has them."""


class Watching:
    """Made and used in one event loop; looks on other threads, for a manager may be slow."""

    def __init__(self, look: Callable[[], Figures], every: float = _EVERY) -> None:
        self._look = look
        self._every = every
        self._history = History()
        self._latest: Figures | None = None
        self._viewers = 0
        self._looking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._end = asyncio.Event()

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Frames until `end`, or until the caller stops; close it."""
        with self._viewer():
            history: list[Point] | None = self._history.points
            while await self._next():
                assert self._latest is not None, "news are figures"
                yield Frame(self._latest, history)
                history = None

    def end(self) -> None:
        """End all frames."""
        self._end.set()
        self._tell()

    @contextlib.contextmanager
    def _viewer(self) -> Iterator[None]:
        self._viewers += 1
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._run())
        try:
            yield
        finally:
            self._viewers -= 1

    async def _next(self) -> bool:
        """Wait for the next figures; False at the end."""
        if not self._end.is_set():
            await self._news.wait()
        return not self._end.is_set()

    async def _run(self) -> None:
        """Look and tell the viewers, until nobody watches."""
        while self._viewers and not self._end.is_set():
            try:
                self._latest = self._history.add(await asyncio.to_thread(self._look))
                self._tell()
            except Exception:
                _log.exception("this machine could not be looked at")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), self._every)
        self._looking = None

    def _tell(self) -> None:
        """Wake everybody who waits."""
        news, self._news = self._news, asyncio.Event()
        news.set()

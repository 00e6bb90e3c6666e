"""What Ctrl-C and SIGTERM do while a command runs: interrupt it, with a sentence on what is kept; later; or at once."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)

TERMINATED: Mapping[int, int] = {signal.SIGTERM: 143}
"""SIGTERM interrupts a job on files."""
STOPPED: Mapping[int, int] = {signal.SIGTERM: 130}
"""SIGTERM ends a stream, or what waits for a job elsewhere, just as Ctrl-C does."""
CTRL_C: Mapping[int, int] = {signal.SIGINT: 130}
NO_OTHERS: Mapping[int, int] = {}
_BOTH = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or the like, with one sentence on what is kept."""

    def __init__(self, sentence: str, status: int = 130) -> None:
        super().__init__(sentence)
        self.status = status


def how(status: int) -> str:
    """What ended with this exit status, in words."""
    return "interrupted by SIGTERM" if status in TERMINATED.values() else "interrupted"


@contextlib.contextmanager
def interruptible(what_is_kept: Callable[[], str], *, also: Mapping[int, int] = NO_OTHERS) -> Iterator[None]:
    """Raise Interrupted at Ctrl-C, whatever Beam, in whose code it arrives, makes of that. In the main thread only.

    `also`: further signals that mean the same, and their exit statuses.
    """
    with noticed({**CTRL_C, **also}) as seen:
        try:
            yield
        except BaseException:
            if seen:
                raise Interrupted(f"{how(seen[0])}; {what_is_kept()}", seen[0]) from None
            raise


@contextlib.contextmanager
def noticed(statuses: Mapping[int, int]) -> Iterator[list[int]]:
    """Has signals raise KeyboardInterrupt. Yields a list, which gets the exit status of each signal that comes.

    Outside the main thread nothing is noticed.
    """
    seen: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        seen.append(statuses[number])
        signal.default_int_handler(number, frame)

    with _Handled(statuses, on_signal) if _is_main() else contextlib.nullcontext():
        yield seen


@contextlib.contextmanager
def ended_by_second_interrupt(said: str) -> Iterator[None]:
    """Within, the first Ctrl-C or SIGTERM is answered by this sentence alone; the next raises KeyboardInterrupt. In the
    main thread only.
    """

    def on_signal(*_: object) -> None:
        for each in _BOTH:
            signal.signal(each, signal.default_int_handler)
        _log.warning(said)

    with _Handled(_BOTH, on_signal):
        yield


@contextlib.contextmanager
def interrupt_held(said: str) -> Iterator[None]:
    """Within, the first Ctrl-C or SIGTERM is answered by this sentence, and interrupts after the block; the next one
    interrupts at once. In the main thread only.
    """
    held: list[int] = []

    def on_signal(number: int, _: object) -> None:
        handled.restore()
        held.append(number)
        _log.warning(said)

    handled = _Handled(_BOTH, on_signal)
    try:
        with handled:
            yield
    finally:
        for number in held:
            signal.raise_signal(number)


@contextlib.contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process at once, where nothing has begun: an import may make any other error of it."""
    with _Handled([signal.SIGINT], lambda *_: os._exit(130)) if _is_main() else contextlib.nullcontext():
        yield


def end_signal() -> threading.Event:
    """The event that Ctrl-C and SIGTERM set from now on, for a command that serves until then; in the main thread."""
    ended = threading.Event()
    for number in _BOTH:
        signal.signal(number, lambda *_: ended.set())
    return ended


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Handled:
    """Within the block these signals call the function."""

    def __init__(self, numbers: Iterable[int], on_signal: Callable[[int, FrameType | None], Any]) -> None:
        self._before = {number: signal.getsignal(number) for number in numbers}
        self._on_signal = on_signal

    def __enter__(self) -> None:
        try:
            for number in self._before:
                signal.signal(number, self._on_signal)
        except BaseException:
            self.restore()
            raise

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Give them back the handlers that they had."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

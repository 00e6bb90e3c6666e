"""`millrace top`: what runs on this machine, as a live picture in the terminal, one frame, JSON, or a page.

Imports neither Beam nor torch, and without --web nothing of the extra `serve`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
from rich.console import Console
from rich.live import Live

from millrace.model_manager.client.status import ReadStatus, read_status
from millrace.model_manager.wire.extras import check_serve_extra
from millrace.serving.metrics.snapshot import snapshot
from millrace.serving.settings import TopConfig
from millrace.serving.window.figures import Figures, figures
from millrace.serving.window.history import History

from ..edge import at_the_edge
from ..flags.from_settings import add_settings, given
from ..flags.parser import FlagParser
from ..flags.shared_flags import add_place, place_of
from ..job.logs import logs_at
from .top_frame import frame

_QUITS = b"qQ"

ReadFigures = Callable[[], Figures]


def main(arguments: Sequence[str]) -> int:
    """Show it until q or a signal; returns the exit status."""
    return at_the_edge(lambda: _top(arguments))


def _top(arguments: Sequence[str]) -> int:
    parser = FlagParser(
        prog="millrace top",
        description="What runs on this machine: jobs, models, the latest rows and dead letters. q or Ctrl-C ends it. "
        "Without a terminal it prints one frame.",
        allow_abbrev=False,
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="Print one frame as text.")
    form.add_argument("--json", action="store_true", help="Print the figures of one frame as one JSON object.")
    form.add_argument(
        "--web", action="store_true", help="Serve a page on 127.0.0.1 until Ctrl-C; needs the extra [serve]."
    )
    names = add_settings(parser, TopConfig)
    add_place(parser)
    flags = parser.parse_args(list(arguments))
    _show(flags, TopConfig(**given(flags, names)), partial(read_status, place_of(flags)))
    return 0


def _show(flags: argparse.Namespace, settings: TopConfig, read: ReadStatus) -> None:
    history = History()
    look = partial(_look, history, read)
    with logs_at("error"):
        if flags.web:
            _serve(settings, read)
        elif flags.json:
            print(msgspec.json.encode(look()).decode())
        elif flags.once or not sys.stdout.isatty():
            _print_frame(look, history, Console(highlight=False))
        else:
            _watch(settings.interval, look, history)


def _print_frame(look: ReadFigures, history: History, console: Console) -> None:
    console.print(frame(look(), history.points, console.width))


def _look(history: History, read: ReadStatus) -> Figures:
    return history.add(figures(snapshot(read)))


def _serve(settings: TopConfig, read: ReadStatus) -> None:
    check_serve_extra("top --web")
    from millrace.serving.window.page_server import serve_page

    serve_page(settings.port, lambda url: print(f"what runs on this machine at {url}", flush=True), read)


def _watch(interval: float, look: ReadFigures, history: History) -> None:
    """A frame each interval, on the terminal's other screen: what was on the first comes back at the end."""
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), _typed_keys() as terminal, _shown(look, history, console) as show:
        while True:
            began = time.monotonic()
            show()
            if _quits(terminal, began + interval):
                return


@contextlib.contextmanager
def _shown(look: ReadFigures, history: History, console: Console) -> Iterator[Callable[[], None]]:
    """What shows a frame in the place of the last; below it on a terminal that has no other screen (TERM=dumb)."""
    if console.is_dumb_terminal:
        yield lambda: _print_frame(look, history, console)
        return
    with _screen(console) as live:
        yield lambda: live.update(frame(look(), history.points, console.width, console.height), refresh=True)


def _screen(console: Console) -> Live:
    return Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


@contextlib.contextmanager
def _typed_keys() -> Iterator[int | None]:
    """A descriptor that gives keys as they are typed, unseen; None if stdin is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _quits(terminal: int | None, until: float) -> bool:
    """Wait until then, or until q is typed."""
    while (left := until - time.monotonic()) > 0:
        if terminal is None:
            time.sleep(left)
        elif select.select([terminal], [], [], left)[0]:
            typed = os.read(terminal, 64)
            if not typed or any(key in _QUITS for key in typed):
                return True
    return False

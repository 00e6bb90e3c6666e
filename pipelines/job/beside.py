"""A thread that runs while a block does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(run: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Call `run` on a thread of that name, with an event that is set at the block's end; waits for the thread."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

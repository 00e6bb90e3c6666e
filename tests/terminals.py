"""A process whose stderr, or all of stdin, stdout and stderr, is a terminal: a pty, 40 lines high."""

from __future__ import annotations

import contextlib
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Sequence
from fcntl import ioctl

_LINES = 40


class OnTerminal:
    """The process, and what its terminal has shown."""

    def __init__(self, process: subprocess.Popen[str], controller: int) -> None:
        self.process = process
        self._controller = controller
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # Linux's end of a pty
            while data := os.read(self._controller, 1 << 16):
                self._shown += data

    def type(self, keys: str) -> None:
        """Keys, as a person presses them."""
        os.write(self._controller, keys.encode())

    def shown(self) -> str:
        """All so far, control sequences included."""
        return self._shown.decode(errors="replace")

    def ended(self, timeout: float) -> str:
        """All that was shown; waits for the process's end."""
        self.process.wait(timeout)
        self._reader.join(timeout)
        return self.shown()


@contextlib.contextmanager
def on_terminal(
    command: Sequence[str], *, columns: int = 100, whole: bool = False, term: str = "xterm"
) -> Iterator[OnTerminal]:
    """Start it; killed at the end, if it is still there. `whole`: the terminal is stdin and stdout too, and its own."""
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, columns, 0, 0))
    sizes = ("COLUMNS", "LINES")  # which would be believed before the terminal
    environment = {name: value for name, value in os.environ.items() if name not in sizes} | {"TERM": term}
    other = terminal if whole else subprocess.DEVNULL
    command = ["setsid", "--ctty", *command] if whole else command
    try:
        pipes = {"stdin": other, "stdout": other, "stderr": terminal}
        with subprocess.Popen(command, **pipes, text=True, env=environment) as process:  # type: ignore[call-overload]
            os.close(terminal)
            running = OnTerminal(process, controller)
            try:
                yield running
            finally:
                process.kill()
                running.ended(60)
    finally:
        os.close(controller)


def lines_of(shown: str) -> list[str]:
    """The lines as a reader sees them scroll by: what stands behind an erased line stands at a line's beginning."""
    return [line.rstrip("\r") for line in shown.replace("\x1b[2K", "\n").split("\n")]

"""The `millrace` command: its console script, and `python -m millrace` for where that is not on PATH.

Until the command is imported, Ctrl-C ends the process at once: nothing has begun. It imports next to nothing itself.
"""

import os
import signal


def main() -> None:
    """Run the command line's command and end the process with its status."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _open_standard_streams()
    from .pipelines.cli import main as run

    run()


def _open_standard_streams() -> None:
    """A stream that was closed (`>&-`) is as /dev/null; else the next file that is opened would take its number."""
    import sys

    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            stream = open(number, mode, closefd=False)  # noqa: SIM115 - the process's, as the others are
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    main()

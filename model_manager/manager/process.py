"""The manager process: `python -m millrace.model_manager.manager.process --runtime FOLDER --lock-fd N --settings JSON`.

With `--forks_soon`, as a model whose engines are forked is about to be opened, it starts their fork server first of
all: that imports for seconds, beside what this process does. So this module imports little.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence

from .fork_server_process import ForkServerProcess, start_fork_server

_FORKS_SOON = "--forks_soon"


def main(arguments: Sequence[str] | None = None, engine_command: Sequence[str] | None = None) -> None:
    """Run until nobody needs the manager, or a signal comes; `engine_command` starts an engine (another for tests)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started it may ignore it; then no engine's end has a status
    fork_server = None
    if _FORKS_SOON in given:
        given.remove(_FORKS_SOON)
        fork_server = _fork_server() if engine_command is None else None
    from .lifetime import run

    run(given, engine_command, fork_server)


def _fork_server() -> ForkServerProcess | None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # told when a model asks
            return start_fork_server()
    return None


if __name__ == "__main__":
    main()

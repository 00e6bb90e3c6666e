"""llama.cpp's own HTTP server in a process of its own: `python -m benchmarks.sides.llama_server FOLDER PORT`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from benchmarks.sides.llama_cpp import server


def main() -> None:
    """Serve until SIGTERM."""
    _, folder, port = sys.argv
    served = server(Path(folder), int(port))
    print(served.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before a thread of the server could take it
    main()

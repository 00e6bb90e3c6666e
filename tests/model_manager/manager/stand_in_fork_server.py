"""The real fork server with nothing imported, and engines that say what they were given and end when told to."""

import json
import os
import socket
import sys


def _engine(arguments: list[str] | None = None) -> int:
    assert arguments is not None
    with socket.socket(fileno=int(arguments[1])) as connection:
        shown = {"arguments": arguments[2:], "threads": os.environ.get("OMP_NUM_THREADS"), "parent": os.getppid()}
        connection.sendall(json.dumps(shown).encode())
        os.write(2, b"it says this")
        return int(connection.recv(1) or b"7")


def main() -> int:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a fork server has one thread
    from millrace.model_manager.engine import fork_server, process

    fork_server._import = lambda: lambda: True
    process.main = _engine
    return fork_server.main()


if __name__ == "__main__":
    sys.exit(main())

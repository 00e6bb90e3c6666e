"""A process that compiles constraints before the engine is asked to: `python -m` this module.

It runs beside the server at a lower priority, within limits of time and memory, and ends with the server. Reads a
constraint's length and key from stdin, one after another, and writes what is wrong with it to stdout.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading

from millrace.model_manager.grammars.compiling import check_quick
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.decoding import msgpack_decoder
from millrace.model_manager.wire.errors import InvalidRequest

HEAD = 4
"""Bytes of a length, the first the largest."""
LONGEST = 2.0
"""Seconds of processor time for one constraint."""
MOST_IN_A_ROW = 10_000
"""Characters that may have to come one after another."""
_NICE = 5
_MOST_MEMORY = 2**32
"""Bytes of address space; beyond, the process ends, and its constraint is refused."""


def fault(key: bytes) -> str:
    """What is wrong with the constraint of that key; empty if nothing is."""
    constraint = msgpack_decoder(Constraint).decode(key)
    try:
        check_quick(constraint, LONGEST, MOST_IN_A_ROW)
    except InvalidRequest as error:
        said = str(error)
        return said if said.startswith("constraint") else f"constraint.{constraint.kind}: {said}"
    return ""


def main() -> None:
    """Answer until stdin ends. A compilation that takes too long cannot be stopped: the process ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    while head := sys.stdin.buffer.read(HEAD):
        said = fault(sys.stdin.buffer.read(int.from_bytes(head))).encode()
        is_last = threading.active_count() > 1
        sys.stdout.buffer.write(len(said).to_bytes(HEAD) + bytes([is_last]) + said)
        sys.stdout.buffer.flush()
        if is_last:
            os._exit(0)


if __name__ == "__main__":
    main()

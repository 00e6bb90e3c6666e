"""The fork server's own process: what it imports leaves it able to fork."""

from __future__ import annotations

import socket
import subprocess
import sys

_PROGRAM = """
import sys
from millrace.model_manager.engine import fork_server
fork_server._import()
first = fork_server._is_alone(), "transformers" in sys.modules
fork_server._import_transformers()
print(*first, fork_server._is_alone(), "transformers" in sys.modules)
"""


def test_it_ends_at_once_where_the_manager_was_killed_before_it_asked_to_die_with_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    program = (
        "import sys\nfrom millrace.model_manager.engine import fork_server\n"
        "status = fork_server.main()\nprint(status, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "--fd", str(theirs.fileno())]
    with theirs:
        ended = subprocess.run(command, capture_output=True, text=True, check=True, pass_fds=[theirs.fileno()])
    assert ended.stdout.strip() == "1 False"


def test_imports_start_no_thread_and_transformers_come_last() -> None:
    """A fork would copy one thread, and leave locked what the others held."""
    shown = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["True", "False", "True", "True"]

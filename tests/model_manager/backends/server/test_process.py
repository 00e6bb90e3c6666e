"""What is said of a server that was ready and cannot be asked now."""

from __future__ import annotations

import contextlib
import socket

from millrace.model_manager.backends.server.ports import Ports
from millrace.model_manager.backends.server.process import ServerProcess
from tests.servers.processes import free_port


def test_a_refused_connection_is_told_from_silence() -> None:
    port = free_port()
    with contextlib.closing(ServerProcess(["sleep", "600"], Ports(port), "/health", {}, {})) as server:
        assert server.why_unhealthy(600.0) == "the server's /health gives no answer: the connection is refused"
        with socket.create_server(("127.0.0.1", port)):
            assert server.why_unhealthy(0.1) == "the server's /health gives no answer within 0.1 s"

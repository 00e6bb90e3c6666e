"""Ports of a managed server: which are chosen, and that no other program is taken for the server."""

from __future__ import annotations

import os
import socket
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.backends.server import ports
from millrace.model_manager.backends.server.engine import load
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelLoadFailed
from millrace.model_manager.wire.server_options import connection_of, parse
from tests.servers.http_threads import JsonHandler, running


def test_a_port_at_which_another_program_listens_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_LOOKS", 1)
    with socket.create_server(("", 0)) as foreign:
        port = foreign.getsockname()[1]
        options = {"command": "sleep 600", "port": port}
        config = ModelConfig(model="m", backend="server", backend_options=options)
        with pytest.raises(ModelLoadFailed, match=f"^port {port}: another program listens there; the option port"):
            load(config, Path())


def test_a_program_that_takes_the_port_as_the_server_starts_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Healthy(JsonHandler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_json({})

    monkeypatch.setattr(ports.Ports, "await_free", lambda _ports: None)
    with running(HTTPServer(("127.0.0.1", 0), Healthy)) as foreign:
        port = foreign.server_address[1]
        options: dict[str, Any] = {"command": "sleep 600", "port": port}
        config = ModelConfig(model="m", backend="server", backend_options=options)
        with pytest.raises(ModelLoadFailed, match=rf"^port {port}: process {os.getpid()} \(.+\) listens there, which"):
            load(config, tmp_path)


@pytest.mark.parametrize(
    "asked", [{"command": "tritonserver {port}", "grpc_port": 8001}, {"command": "tritonserver {port} {grpc_port}"}]
)
def test_a_port_for_grpc_says_what_requests_go_over_and_in_which_dialect(asked: dict[str, Any]) -> None:
    fields = {"preset": "triton", **asked}
    connection = connection_of("server", fields)
    assert connection is not None
    assert (connection.over_grpc, connection.dialect) == (True, "kserve")
    chosen = ports.Ports.chosen(parse(fields)[0])
    assert chosen.url == f"grpc://127.0.0.1:{asked.get('grpc_port', chosen.grpc)}"
    assert 0 not in (chosen.http, chosen.grpc)
    assert chosen.http != chosen.grpc


@pytest.mark.parametrize("named", ["port", "grpc_port"])
@pytest.mark.parametrize("port", [41, 42])
def test_a_free_port_is_none_that_an_option_names(monkeypatch: pytest.MonkeyPatch, named: str, port: int) -> None:
    monkeypatch.setattr(ports, "_free_ports", lambda: [41, 42])
    chosen = ports.Ports.chosen(parse({"command": "run {port} {grpc_port}", named: port})[0])
    assert getattr(chosen, {"port": "http", "grpc_port": "grpc"}[named]) == port
    assert {chosen.http, chosen.grpc} == {41, 42}

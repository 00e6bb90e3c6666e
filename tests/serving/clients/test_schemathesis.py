"""Requests made of `/openapi.json`, right and wrong ones: none of them makes the server fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.clients.conftest import said_by
from tests.serving.servers import Server

EXAMPLES = 15
"""For each route."""


@pytest.mark.engines
def test_no_request_makes_the_server_fail(
    server: Server, client_program: Callable[[str], Path], tmp_path: Path
) -> None:
    checks = ("--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing")
    bounds = ("--max-examples", str(EXAMPLES), "--seed", "1", "--generation-database", "none")
    program = client_program("schemathesis").with_name("schemathesis")
    said_by(program, "run", f"{server.url}/openapi.json", *checks, *bounds, cwd=tmp_path)

"""Clients that people have, each in an environment of its own: all are answered as OpenAI's service answers them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.clients.conftest import said_by
from tests.serving.servers import MODEL, Server

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.engines
@pytest.mark.parametrize("client", ["instructor", "langchain", "litellm"])
def test_a_client_in_python_is_answered(real: Server, client_program: Callable[[str], Path], client: str) -> None:
    said_by(client_program("openai_clients"), PROGRAMS / f"with_{client}.py", f"{real.url}/v1", MODEL)


@pytest.mark.engines
def test_openais_client_for_node_is_answered(
    real: Server, client_program: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "node_modules").symlink_to(client_program("openai_node") / "node_modules")
    program = tmp_path / "with_openai.mjs"  # Node looks for packages beside the program
    program.write_bytes((PROGRAMS / "with_openai.mjs").read_bytes())
    said_by("node", program, f"{real.url}/v1", MODEL)

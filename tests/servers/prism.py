"""Prism, Beam's portable runner in Go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.servers.go_programs import go_program
from tests.servers.processes import free_port, listens, serving


def prism() -> Path:
    """The program."""
    return go_program("prism")


@contextlib.contextmanager
def prism_server(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A job server, whose log is in `folder`; yields its endpoint. `environment` is what its workers get too."""
    port = free_port()
    command = [str(prism()), f"--job_port={port}", "--serve_http=false"]
    with serving(command, lambda: listens(port), log=folder / "prism.log", environment=environment):
        yield f"localhost:{port}"
